"""What the server says of its own routes: an OpenAPI document, made from the models that check the requests."""
