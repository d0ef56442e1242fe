"""From a checked request to text: prompts, generations, their choices and deltas."""
