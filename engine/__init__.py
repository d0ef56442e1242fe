"""The engine: token ids in, token ids out. Requests, scheduler, steps, models; no text, no HTTP."""
