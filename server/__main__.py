"""`python -m server`: the command `eagre`, where it is not installed."""

import sys

from server.cli.main import main

sys.exit(main())
