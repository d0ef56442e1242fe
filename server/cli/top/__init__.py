"""`eagre top`: a live view of a server's engine in the terminal."""
