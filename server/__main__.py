"""`python -m server`: the command `eagre`, where it is not installed."""

import os
import sys

# `python -m` looks for modules in the working directory first. Only that of a checkout may stay, which this file is in.
if not sys.flags.safe_path and not os.path.samefile(
    sys.path[0] or os.curdir, os.path.dirname(os.path.dirname(__file__))
):
    del sys.path[0]

from server.cli.main import main

sys.exit(main())
