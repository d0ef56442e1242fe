"""What every request passes before its handler, and what the handler finds there: its id, its tenant, the models."""
