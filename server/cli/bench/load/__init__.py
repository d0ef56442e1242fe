"""Load on a server: what is asked, the clients that ask it, and what they saw. Benchmarks use it too."""
