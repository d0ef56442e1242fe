"""From a plan to its result: the step's arrays, its compiled programs, and the runner that dispatches them."""
