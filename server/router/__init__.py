"""One front before several servers: which of them gets a request, how its answer passes, what happens when one dies."""
