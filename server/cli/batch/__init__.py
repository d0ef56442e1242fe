"""`eagre run-batch`: answers a file of requests without a server."""
