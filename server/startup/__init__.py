"""What happens before the first request: settings, the model store, loading, progress, logs."""
