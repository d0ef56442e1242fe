"""Commands and environments of child processes of Python, which never import from the working directory.

A file `pip.py` or `json.py` in a folder that somebody has unpacked must not run because `eagre` was called there. Every
module of ours that starts a process of Python takes its command from here; a test looks for others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]  # the folder of our own packages


def python_command(*arguments: str) -> list[str]:
    """The command of this Python with some arguments.

    `-P` leaves the working directory out of the module search path. `-I` does too, but it also ignores PYTHONPATH and
    the user's own site-packages, and would lose packages that were installed there.
    """
    return [sys.executable, "-P", *arguments]


def python_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables for a Python process: these (this process's own if not given), and a PYTHONPATH of absolute paths.

    An empty or relative entry of PYTHONPATH means the working directory, or a folder in it; `PYTHONPATH=$PYTHONPATH:/x`
    makes one.
    """
    variables = dict(os.environ if environment is None else environment)
    given = variables.pop("PYTHONPATH", None)
    paths = [path for path in (given or "").split(os.pathsep) if os.path.isabs(path)]
    if paths:
        variables["PYTHONPATH"] = os.pathsep.join(paths)
    return variables


def same_modules(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """As `python_environment`, for a process that finds the modules of this one, its working directory aside."""
    paths = [path for path in sys.path if os.path.isabs(path) and not _is_working_directory(path)]
    if str(_ROOT) not in paths:
        paths.insert(0, str(_ROOT))
    return {**python_environment(environment), "PYTHONPATH": os.pathsep.join(paths)}


def _is_working_directory(path: str) -> bool:
    """Whether a path of the module search path is the working directory, and not also that of our packages."""
    try:
        return os.path.samefile(path, os.curdir) and not os.path.samefile(path, _ROOT)
    except OSError:  # there is no such folder
        return False
