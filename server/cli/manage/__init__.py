"""Commands that manage models and the servers in the background: models, run, ps, show, stop, rm."""
