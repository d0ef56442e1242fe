"""KV transfer: pages that are offloaded to a folder or read from other servers, by their names."""
