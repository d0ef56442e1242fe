"""Files and batches: their routes, and what computes the requests of batches behind all others."""
