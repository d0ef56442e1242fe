"""From a checked request to text: prompts, output sequences, deltas, and what observes them."""
