"""The request bodies of the routes that score and classify texts."""
