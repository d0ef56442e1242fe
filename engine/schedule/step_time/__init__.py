"""How much of the prompts that wait one step computes: what steps cost on this machine, and who gets what is left."""
