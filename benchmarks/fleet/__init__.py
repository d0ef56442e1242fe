"""Several servers behind a router, ours or another: checks, costs, and a simulation of large fleets."""
