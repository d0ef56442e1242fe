"""Tool calls in the text of an answer: which syntaxes models write them in, and how they are read while they stream."""
