"""How bytes come and go: the connections, the bodies of requests, and writes that a client may stall."""
