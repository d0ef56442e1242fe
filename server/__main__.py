"""`python -m server`: the command `eagre`, where it is not installed."""

import sys

from server.command.cli import main

sys.exit(main())
