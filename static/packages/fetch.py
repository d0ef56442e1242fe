"""Fetches the page's packages from the npm registry into folders beside this file: `python static/packages/fetch.py`.

npm is used where it is installed, with its own configuration; otherwise the registry that `NPM_CONFIG_REGISTRY` or an
`.npmrc` names is asked over HTTPS. Either way an archive counts only with the digest of `package-lock.json`. Without
these packages the page shows formulas as their source, and refuses PDF files.
"""

import base64
import contextlib
import fnmatch
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
REGISTRY = "https://registry.npmjs.org/"
TIMEOUT = 120.0  # seconds, of one package
MAX_BYTES = 64 << 20  # of one archive

# What the page loads of each package, by its path in it; the licence goes along.
FILES = {
    "katex": ("LICENSE", "dist/katex.min.js", "dist/katex.min.css", "dist/fonts/*.woff2"),
    "pdfjs-dist": ("LICENSE", "legacy/build/pdf.min.mjs", "legacy/build/pdf.worker.min.mjs", "cmaps/*.bcmap"),
}


class CannotFetch(Exception):
    """A package is not to be had; the message says why."""


class Package(NamedTuple):
    name: str
    version: str
    integrity: str  # "sha512-" and the digest of the archive in base64

    @property
    def folder(self) -> str:
        """The name of its folder. It has the version, so that a browser may keep what lies there for good."""
        return f"{self.name}@{self.version}"


def pinned() -> list[Package]:
    """The packages of `package-lock.json`."""
    locked = json.loads((HERE / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    of_each = {name: locked[f"node_modules/{name}"] for name in FILES}
    return [Package(name, entry["version"], entry["integrity"]) for name, entry in of_each.items()]


def fetch_all(to: Path = HERE) -> list[str]:
    """Fetches what is not there yet; returns a sentence for each package that is not to be had."""
    failures = []
    for package in pinned():
        try:
            if not (to / package.folder).is_dir():
                _unpack(package, _archive(package), to)
        except (CannotFetch, OSError, tarfile.TarError) as reason:
            failures.append(f"the page does without {package.name}: {reason}")
    return failures


def registry(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> str:
    """The registry that npm would ask, by its variable or the user's `.npmrc`."""
    for name, value in environment.items():
        if name.lower() == "npm_config_registry" and value:
            return value.rstrip("/") + "/"
    settings = (home or Path.home()) / ".npmrc"
    written = settings.read_text(encoding="utf-8", errors="replace") if settings.is_file() else ""
    found = re.search(r"^\s*registry\s*=\s*[\"']?([^\s\"']+)", written, re.MULTILINE)
    return found[1].rstrip("/") + "/" if found else REGISTRY


def _archive(package: Package) -> bytes:
    archive = _by_npm(package) or _by_https(package)
    digest = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if digest != package.integrity:
        raise CannotFetch(f"its archive is not the one that package-lock.json pins ({digest})")
    return archive


def _by_npm(package: Package) -> bytes | None:
    """The archive as npm fetches it, or None where npm is not installed or fails."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", f"{package.name}@{package.version}", "--silent", "--ignore-scripts"]
        try:
            subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        archives = list(Path(folder).glob("*.tgz"))
        return archives[0].read_bytes() if archives else None


def _by_https(package: Package) -> bytes:
    url = f"{registry()}{package.name}/-/{package.name}-{package.version}.tgz"
    if not url.startswith(("https://", "http://")):
        raise CannotFetch(f"{url} is no web address")
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
        archive: bytes = response.read(MAX_BYTES + 1)
    if len(archive) > MAX_BYTES:
        raise CannotFetch(f"its archive is larger than {MAX_BYTES >> 20} MiB")
    return archive


def _unpack(package: Package, archive: bytes, to: Path) -> None:
    """Writes the wanted files into the package's folder, which appears when it is complete."""
    with tempfile.TemporaryDirectory(dir=to) as folder:
        root = Path(folder, package.folder)
        for path, content in _wanted(package, archive):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        if not (root / "LICENSE").is_file():
            raise CannotFetch("its archive has not the files that the page needs")
        with contextlib.suppress(FileExistsError):  # another build was quicker
            if not (to / package.folder).is_dir():
                root.rename(to / package.folder)
    for old in to.glob(f"{package.name}@*"):
        if old.name != package.folder:
            shutil.rmtree(old, ignore_errors=True)


def _wanted(package: Package, archive: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        for member in members:
            path = member.name.removeprefix("package/")
            is_wanted = any(fnmatch.fnmatchcase(path, pattern) for pattern in FILES[package.name])
            if is_wanted and member.isfile() and ".." not in path and (file := members.extractfile(member)):
                yield path, file.read()


if __name__ == "__main__":
    for line in fetch_all():
        sys.stderr.write(line + "\n")
