"""`eagre top`: what a server's engine does, as one picture of the terminal that is drawn again and again."""
