"""Hostile pictures: the files, an attack on every server, and a round against one whose model sees."""
