"""The router: chooses a replica for each request, proxies its answer, and moves streams when a replica dies."""
