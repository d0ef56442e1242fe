"""The architecture of Gemma 4: its configuration, its layers and its experts."""
