"""The generating routes: how each turns a body into requests, and deltas into what its clients expect."""
