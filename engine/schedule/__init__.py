"""Scheduling, host logic without JAX: the queue, admission, preemption, prefix cache, step plans and their commit."""
