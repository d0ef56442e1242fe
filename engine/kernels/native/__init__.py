"""The native bodies: C++ kernels for CPUs, called from compiled programs."""
