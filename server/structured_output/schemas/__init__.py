"""What is done to JSON schemas before they are compiled: closed objects, bounded numbers, located errors."""
