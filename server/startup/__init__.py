"""What happens before the first request: settings, loading, progress bars and logs."""
