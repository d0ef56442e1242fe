"""Structured output: grammars are checked against limits, compiled, and matched with outputs token by token."""
