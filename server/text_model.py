"""Everything the text side knows of the loaded model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from server.chat_template import ChatTemplate
from server.gguf_metadata import GgufMetadata, read_gguf_metadata
from server.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model as the routes see it: a name, a tokenizer and perhaps a chat template."""

    name: str  # the served name, where the user gives no other
    path: Path
    metadata: GgufMetadata
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None: the model is not made for chat

    @property
    def context_length(self) -> int:
        """Tokens the model was trained for, prompt and output together."""
        return self.metadata.context_length

    @classmethod
    def load(cls, path: Path, name: str | None = None) -> TextModel:
        """Reads the text side of the GGUF file at `path`; the name is the file's, less its suffix, if none is given.

        Raises:
            GgufError: the file is damaged, incomplete, or has an unsupported tokenizer.
            ChatTemplateError: its chat template is broken.
        """
        metadata = read_gguf_metadata(path)
        chat_template = None
        if metadata.chat_template is not None:
            chat_template = ChatTemplate(
                metadata.chat_template,
                bos_token=_token_text(metadata, metadata.bos_token_id),
                eos_token=_token_text(metadata, metadata.eos_token_id),
            )
        return cls(name or path.stem, path, metadata, Tokenizer(metadata), chat_template)


def _token_text(metadata: GgufMetadata, token_id: int | None) -> str:
    return "" if token_id is None else metadata.tokens[token_id]
