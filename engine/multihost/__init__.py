"""One model over several processes and hosts: a leader sends its followers every step, and all compute it together."""
