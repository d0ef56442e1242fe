"""What the Responses and Conversations APIs store: records of both, and how a stored conversation is read and grown."""
