"""Step time: predicts how long a step takes and bounds how much of the prompts it computes."""
