"""What an operator may look at afterwards: the last requests of all clients, what was asked and how it went."""
