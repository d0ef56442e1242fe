"""The native backend: C++ kernels for CPUs, called from compiled programs."""
