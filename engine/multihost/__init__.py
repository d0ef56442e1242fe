"""One model over several processes and hosts: a leader tells its followers every step, and all compute it together."""
