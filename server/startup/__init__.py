"""All that happens before the first request: settings, loading, progress and logs."""
