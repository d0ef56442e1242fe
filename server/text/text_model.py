"""The text side of the loaded model: its name, tokenizer and chat template."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from engine.border.errors import ModelError
from engine.weights.formats.model_folder import ModelFolder
from server.text.chat_template import ChatTemplate, ChatTemplateError
from server.text.folder_tokenizer import load_folder_tokenizer
from server.text.tokenizer import Tokenizer
from server.text.vocabularies.folder_metadata import read_folder_metadata
from server.text.vocabularies.gguf_metadata import read_gguf_metadata


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model as the routes see it: a name, a tokenizer and, for chat models, a chat template."""

    name: str  # the name under which it is served
    path: Path
    context_length: int  # tokens the model was trained for, prompt and output together
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None if the model has none

    @classmethod
    def load(cls, path: Path, name: str | None = None) -> TextModel:
        """Reads the text side of the model at `path`, a GGUF file or a folder in Hugging Face's layout.

        Args:
            name: by default the name of the folder, or of the file without its suffix.

        Raises:
            ModelError: the model is damaged or incomplete, its tokenizer is not supported, or its chat template is
                broken.
        """
        return cls._load_folder(path, name) if path.is_dir() else cls._load_gguf(path, name)

    @classmethod
    def _load_gguf(cls, path: Path, name: str | None) -> TextModel:
        metadata = read_gguf_metadata(path)

        def text_of(token_id: int | None) -> str | None:
            return None if token_id is None else metadata.tokens[token_id]

        return cls(
            name or path.stem,
            path,
            metadata.context_length,
            Tokenizer.from_gguf(metadata),
            _chat_template(metadata.chat_template, text_of(metadata.bos_token_id), text_of(metadata.eos_token_id)),
        )

    @classmethod
    def _load_folder(cls, path: Path, name: str | None) -> TextModel:
        folder = ModelFolder(path)
        metadata = read_folder_metadata(folder)
        return cls(
            name or Path(os.path.abspath(path)).name,  # so "." has a name too, and a link keeps its own
            path,
            metadata.context_length,
            load_folder_tokenizer(folder, metadata),
            _chat_template(metadata.chat_template, metadata.bos_token, metadata.eos_token),
        )


def _chat_template(source: str | None, bos_token: str | None, eos_token: str | None) -> ChatTemplate | None:
    """
    Raises:
        ModelError: the template is broken.
    """
    if source is None:
        return None
    try:
        return ChatTemplate(source, bos_token=bos_token or "", eos_token=eos_token or "")
    except ChatTemplateError as error:
        raise ModelError(str(error)) from error
