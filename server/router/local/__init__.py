"""Replicas that are processes of this machine: what each gets of it, and how they are started and ended."""
