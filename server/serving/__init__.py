"""The served models: loading, sleeping, and the path of a request to the engine of its model."""
