"""The native backends: C++ kernels for CPUs, called from compiled programs."""
