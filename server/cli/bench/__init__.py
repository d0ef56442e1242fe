"""`eagre bench`: measures a server that speaks OpenAI's API under load, and writes a report with plots."""
