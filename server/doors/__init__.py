"""Who may come in, and from where: keys, host names, web origins, budgets."""
