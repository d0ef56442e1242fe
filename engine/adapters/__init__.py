"""Low-rank adapters beside a model's weights: their files, their memory on the device, and their products by row."""
