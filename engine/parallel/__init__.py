"""Placement: an engine's arrays and programs on one device, or on several that compute one model together."""
