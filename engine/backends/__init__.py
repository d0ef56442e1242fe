"""The backends that compute the heavy parts of a step, and the choice among them."""
