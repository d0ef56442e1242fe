"""The command `eagre` and its subcommands."""
