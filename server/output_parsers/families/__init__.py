"""The syntaxes in which families of models write their calls, one family a file."""
