"""Model files of the shapes that people run, with random weights, on which the time of a step does not depend."""
