"""`eagre chat`: a conversation in the terminal, with rendered markdown and slash commands."""
