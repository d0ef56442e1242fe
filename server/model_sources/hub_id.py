"""Names of models on the Hugging Face Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<file>[^:@]+))?(?:@(?P<revision>[^:@]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubId:
    """`owner/name[:file-or-quant][@revision]`, such as `bartowski/SmolLM2-360M-Instruct-GGUF:Q4_K_M@main`."""

    repository: str  # owner/name
    file: str | None = None  # a GGUF file of the repository, or the quantisation in the name of one
    revision: str | None = None  # a branch, a tag or a commit; None is the main branch

    @classmethod
    def parse(cls, text: str) -> HubId | None:
        """None where the text is no such name."""
        match = _ID.fullmatch(text)
        if match is None or any(set(word) == {"."} for word in match["repository"].split("/")):
            return None
        return cls(match["repository"], match["file"], match["revision"])

    def __str__(self) -> str:
        file = "" if self.file is None else f":{self.file}"
        return self.repository + file + ("" if self.revision is None else f"@{self.revision}")
