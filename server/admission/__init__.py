"""Admission: API keys, host names, web origins, fair limits, budgets, throttles and thread pools."""
