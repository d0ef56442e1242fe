"""The command line: `eagre` and its subcommands."""
