"""The command `eagre` and its subcommands `serve` and `complete`."""
