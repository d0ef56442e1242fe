"""The OpenAPI document, and the tables of docs/protocol.md, made from the models that validate requests."""
