"""The playground's files, shipped as package data: a page, a style sheet, an icon and ES modules."""
