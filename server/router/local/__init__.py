"""Servers that are processes of this machine: their supervisor, their shares of it, and the source of replicas."""
