"""Tools that all benchmarks share: command lines, server processes, loads on them, alternating measurements, tables."""
