"""Pages of the KV cache: ids, hashes, the free queue, the pool, and the device arrays behind them."""
