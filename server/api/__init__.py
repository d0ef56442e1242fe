"""The generating routes, free of HTTP: how a body becomes a request, and an answer what the route's clients expect."""
