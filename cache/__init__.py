"""The KV cache: the metadata, hashes, free queue and pool of its pages, and the device arrays behind them."""
