"""`eagre bench`: load on a server that speaks OpenAI's API, its figures while it runs, and a report with plots."""
