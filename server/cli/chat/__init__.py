"""`eagre chat`: a conversation in the terminal, with markdown while it streams, and commands that begin with /."""
