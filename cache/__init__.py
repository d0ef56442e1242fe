"""The pages of the KV cache: their metadata, hashes, free queue and pool, and the device arrays behind them."""
