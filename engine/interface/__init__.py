"""What crosses between the server and the engine: configuration, data types, errors."""
