"""Kernels of our own for plain CPUs, in C++, called from within compiled programs."""
