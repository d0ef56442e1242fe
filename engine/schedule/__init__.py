"""Which requests run in the next step: queue, slots, prefix cache, deadlines, plans; host logic without JAX."""
