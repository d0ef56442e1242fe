"""Where an engine's arrays lie and its programs run: on one device, or on several that compute one model together."""
