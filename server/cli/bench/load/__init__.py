"""A load generator: workloads, clients, traces of requests, reports. Benchmarks use it too."""
