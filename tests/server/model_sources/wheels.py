"""Small wheels with a model in them, whole or in parts, and a recorder of progress."""

from __future__ import annotations

import base64
import hashlib
import itertools
import zipfile
from pathlib import Path

from server.model_sources.builtin_models import BuiltinModel
from server.model_sources.builtin_parts import BuiltinPart

CONTENT = b"GGUF" + hashlib.shake_256(b"model").digest(1 << 20)
CUTS = (0, 400_000, 900_000, len(CONTENT))
PIECES = [CONTENT[start:end] for start, end in itertools.pairwise(CUTS)]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def part(wheel: Path, content: bytes, suffix: str = ".gguf") -> BuiltinPart:
    name, version = wheel.name.split("-")[:2]
    requirement = f"{name.replace('_', '-')}=={version}"
    return BuiltinPart(requirement, sha256(wheel.read_bytes()), suffix, sha256(content), len(content))


def builtin(*parts: BuiltinPart, content: bytes = CONTENT) -> BuiltinModel:
    return BuiltinModel(parts, sha256(content), "no license")


def make_wheel(folder: Path, members: dict[str, bytes], package: str = "tiny_gguf") -> Path:
    metadata = f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n"
    members = members | {
        f"{package}-1.0.dist-info/METADATA": metadata.encode(),
        f"{package}-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in members.items()
    )
    folder.mkdir(exist_ok=True)
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (members | {f"{package}-1.0.dist-info/RECORD": record.encode()}).items():
            archive.writestr(name, data)
    return path


def make_parts(folder: Path) -> list[BuiltinPart]:
    """The wheels of a model in three parts."""
    return [
        part(
            make_wheel(folder, {f"data/tiny.gguf.part{index:02d}": piece}, f"tiny_part{index + 1}"),
            piece,
            f".gguf.part{index:02d}",
        )
        for index, piece in enumerate(PIECES)
    ]


class Stages:
    """Records the progress of a pull."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.calls.append((stage, done, total))

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(stage for stage, _, _ in self.calls))


def interrupt_at(second: str) -> Stages:
    """The progress of a pull that Ctrl-C ends in the midst of a stage."""

    class Interrupted(Stages):
        def __call__(self, stage: str, done: int, total: int) -> None:
            super().__call__(stage, done, total)
            if stage == second and total:
                raise KeyboardInterrupt

    return Interrupted()
