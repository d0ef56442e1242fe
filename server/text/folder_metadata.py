"""What the text side needs to know from a model folder's JSON files: limits, special tokens, chat template.

Source of the files' meaning: Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.border.errors import ModelError
from engine.weights.formats.model_folder import JsonFile, ModelFolder

TOKENIZER_CONFIG = "tokenizer_config.json"
ADDED_TOKENS = "added_tokens.json"  # of older folders
SPECIAL_TOKENS_MAP = "special_tokens_map.json"  # of older folders
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"  # wins over the one in TOKENIZER_CONFIG
MAX_VOCAB_SIZE = 1 << 24  # a damaged file shall not make a table of as many tokens as it says
DEFAULT_TEMPLATE = "default"  # of several templates, the one for plain chat


@dataclass(frozen=True, slots=True)
class FolderMetadata:
    """The text side's view of a model folder, its vocabulary aside."""

    context_length: int  # tokens the model was trained for
    vocab_size: int  # of the model's matrices: a tokenizer may know fewer tokens
    bos_token_id: int | None  # as the model's configuration has it
    eos_token_ids: tuple[int, ...]  # any of them ends an output
    bos_token: str | None  # as the tokenizer's configuration has it
    eos_token: str | None
    add_bos_token: bool | None  # None: what the tokenizer's own pipeline does
    add_eos_token: bool | None
    added_tokens: Mapping[str, int]  # ids of tokens told beside the tokenizer's file, which may hold them as well
    chat_template: str | None


def read_folder_metadata(folder: ModelFolder) -> FolderMetadata:
    """
    Raises:
        ModelError: a file is damaged, or a needed field is missing or wrong.
    """
    config = folder.config
    vocab_size = config.required_integer("vocab_size", least=1, most=MAX_VOCAB_SIZE)
    tokenizer, tokens = _optional(folder, TOKENIZER_CONFIG), _optional(folder, SPECIAL_TOKENS_MAP)
    files = (_optional(folder, GENERATION_CONFIG), config)
    return FolderMetadata(
        context_length=config.required_integer("max_position_embeddings", least=2),
        vocab_size=vocab_size,
        bos_token_id=config.integer("bos_token_id", least=0, most=vocab_size - 1),
        eos_token_ids=tuple(token_id for file in files for token_id in _token_ids(file, "eos_token_id", vocab_size)),
        bos_token=_token(tokenizer, "bos_token") or _token(tokens, "bos_token"),
        eos_token=_token(tokenizer, "eos_token") or _token(tokens, "eos_token"),
        add_bos_token=tokenizer.flag("add_bos_token"),
        add_eos_token=tokenizer.flag("add_eos_token"),
        added_tokens=_added_tokens(tokenizer, _optional(folder, ADDED_TOKENS)),
        chat_template=folder.text(CHAT_TEMPLATE) or _chat_template(tokenizer),
    )


def _optional(folder: ModelFolder, name: str) -> JsonFile:
    """A file that need not be there; without it nothing is told."""
    return folder.json(name) or JsonFile(folder.path / name, {})


def _token_ids(file: JsonFile, key: str, vocab_size: int) -> tuple[int, ...]:
    """One token id or a list of them."""
    value = file.value(key)
    token_ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in token_ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
            raise file.error(key, f"it must be a token id from 0 to {vocab_size - 1}, or a list of such")
    return tuple(token_ids)


def _token(file: JsonFile, key: str) -> str | None:
    """A special token's text, alone or as an object that says how it is found in texts."""
    value = file.value(key)
    content = value.get("content") if isinstance(value, dict) else value
    if content is None or isinstance(content, str):
        return content
    raise file.error(key, "it must be a token's text")


def _added_tokens(tokenizer: JsonFile, added: JsonFile) -> dict[str, int]:
    """Added tokens by their text, from `added_tokens_decoder` (ids to tokens) and from a file of its own."""
    highest = MAX_VOCAB_SIZE - 1
    tokens = {token: added.required_integer(token, least=0, most=highest) for token in added.names}
    decoder = tokenizer.table("added_tokens_decoder")
    if decoder is None:
        return tokens
    for key in decoder.names:
        token = _token(decoder, key)
        if token is None or not key.isdecimal() or len(key) > len(str(highest)):
            raise tokenizer.error("added_tokens_decoder", "it must map token ids to tokens")
        tokens[token] = int(key)
    return tokens


def _chat_template(file: JsonFile) -> str | None:
    """The only template, or of a list of named ones the one for plain chat."""
    value = file.value("chat_template")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise file.error("chat_template", "it must be a string or a list of named templates")
    for entry in value:
        match entry:
            case {"name": str(name), "template": str(template)}:
                if name == DEFAULT_TEMPLATE:
                    return template
            case _:
                raise ModelError(f"{file.path}: an entry of chat_template lacks its name or its template")
    return None
