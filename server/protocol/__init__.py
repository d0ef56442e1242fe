"""What clients may send, checked field by field, and the errors that they get."""
