"""From a plan to its result: a step's input arrays, its compiled programs, and the runner that dispatches them."""
