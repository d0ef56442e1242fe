"""Files and batches of requests: their bodies, their lines and their objects, in OpenAI's form."""
