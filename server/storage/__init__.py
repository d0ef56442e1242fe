"""Records that outlive the request that made them: in memory, or in a file that survives the process."""
