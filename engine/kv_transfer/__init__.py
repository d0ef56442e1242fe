"""Pages that leave the engine and come back by their names, through one interface to a folder or to other servers."""
