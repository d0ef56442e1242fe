"""The types that server and engine share: configuration, data types, errors."""
