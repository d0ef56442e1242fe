"""Who may come in, from where, and when: keys, host names, web origins, budgets, turns of the loop."""
