"""All that happens before the first request: settings, model store, loading, progress and logs."""
