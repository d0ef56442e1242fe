"""The playground over HTTP: its files, its bundles, and the routes that serve them."""
