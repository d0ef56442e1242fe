"""Replicas that are processes of this machine: their shares of its cores, memory and GPUs, and their source."""
