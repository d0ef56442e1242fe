"""Reads the parts that calls are made of: JSON and its repair, markers, the types of arguments."""
