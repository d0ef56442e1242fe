"""Reads limits, special tokens and chat template of a Hugging Face folder; the files mean what transformers says."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import JsonFile, ModelFolder
from server.text.tokenization.control_tokens import AddedToken
from server.text.tokenization.gguf_metadata import TEMPLATE_VARIANTS

TOKENIZER_CONFIG = "tokenizer_config.json"
ADDED_TOKENS = "added_tokens.json"  # only in older folders
SPECIAL_TOKENS_MAP = "special_tokens_map.json"  # only in older folders
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"  # has precedence over the template in TOKENIZER_CONFIG
# Where a text_config says nothing; source: transformers' classes.
_DEFAULTS = {
    "gemma3_text": {"vocab_size": 262_208, "max_position_embeddings": 131_072},
    "gemma3n_text": {"vocab_size": 262_400, "max_position_embeddings": 32_768},
    "llama4_text": {"vocab_size": 202_048, "max_position_embeddings": 131_072},
}
_CONTEXT = "max_position_embeddings"
_OTHER_NAMES = ("n_positions", "model_max_length")  # of GPT-2 and Nomic Embed, and of Kimi Linear
MAX_VOCAB_SIZE = 1 << 24  # so that a damaged file cannot ask for a huge table
CHAT_TEMPLATES = "chat_template.json"  # only in folders of models that see pictures, too
MORE_TEMPLATES = "additional_chat_templates"  # a folder
DEFAULT_TEMPLATE = "default"  # the name of the template for plain chat, if there are several


@dataclass(frozen=True, slots=True)
class FolderMetadata:
    """What the server needs to know of a model folder, apart from its vocabulary."""

    context_length: int  # tokens the model was trained for
    vocab_size: int  # of the model's matrices; the tokenizer may have fewer tokens
    bos_token_id: int | None  # from the configuration of the model
    eos_token_ids: tuple[int, ...]  # any of them ends an output
    bos_token: str | None  # from the configuration of the tokenizer
    eos_token: str | None
    add_bos_token: bool | None  # None: the pipeline of the tokenizer decides
    add_eos_token: bool | None
    add_prefix_space: bool | None  # None: the kind of the tokenizer decides; this is about SentencePiece alone
    legacy: bool | None  # as `SpacePrefix` says; None: as above
    added_tokens: Mapping[str, AddedToken]  # by text, from other files than the tokenizer's own
    chat_template: str | None
    template_variants: Mapping[str, str]  # templates for other purposes than plain chat, by name
    sampling: Mapping[str, object]  # what the generation configuration says, unchecked


def read_folder_metadata(folder: ModelFolder) -> FolderMetadata:
    """Reads the metadata; raises ModelError if a file is damaged, or a needed field is missing or wrong."""
    config = folder.config
    inner = config.table("text_config")  # of a model that does more than read text
    text = inner or config
    text = text.with_defaults(_DEFAULTS.get(text.text("model_type") or "", {}))
    text = text.with_defaults({_CONTEXT: next(filter(None, map(text.value, _OTHER_NAMES)), None)})
    vocab_size = text.required_integer("vocab_size", least=1, most=MAX_VOCAB_SIZE)
    tokenizer, tokens = _optional(folder, TOKENIZER_CONFIG), _optional(folder, SPECIAL_TOKENS_MAP)
    files = (_optional(folder, GENERATION_CONFIG), config, *([] if inner is None else [inner]))
    templates = (
        _chat_templates(tokenizer) | _chat_templates(_optional(folder, CHAT_TEMPLATES)) | _templates_beside(folder)
    )
    return FolderMetadata(
        context_length=text.required_integer(_CONTEXT, least=2),
        vocab_size=vocab_size,
        bos_token_id=text.integer("bos_token_id", least=0, most=vocab_size - 1),
        eos_token_ids=tuple(token_id for file in files for token_id in _token_ids(file, "eos_token_id", vocab_size)),
        bos_token=_token(tokenizer, "bos_token") or _token(tokens, "bos_token"),
        eos_token=_token(tokenizer, "eos_token") or _token(tokens, "eos_token"),
        add_bos_token=tokenizer.flag("add_bos_token"),
        add_eos_token=tokenizer.flag("add_eos_token"),
        add_prefix_space=tokenizer.flag("add_prefix_space"),
        legacy=tokenizer.flag("legacy"),
        added_tokens=_added_tokens(tokenizer, tokens, _optional(folder, ADDED_TOKENS)),
        chat_template=folder.text(CHAT_TEMPLATE) or templates.pop(DEFAULT_TEMPLATE, None),
        template_variants=templates,
        sampling={name: files[0].value(name) for name in files[0].names},
    )


def _optional(folder: ModelFolder, name: str) -> JsonFile:
    return folder.json(name) or JsonFile(folder.path / name, {})


def _token_ids(file: JsonFile, key: str, vocab_size: int) -> tuple[int, ...]:
    """The token ids of a field that may hold one id or a list."""
    value = file.value(key)
    token_ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in token_ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or not 0 <= token_id < vocab_size:
            raise file.error(key, f"it must be a token id from 0 to {vocab_size - 1}, or a list of such")
    return tuple(token_ids)


def _token(file: JsonFile, key: str) -> str | None:
    """The text of a special token, which is stored as a string or as the `content` of an object."""
    value = file.value(key)
    content = value.get("content") if isinstance(value, dict) else value
    if content is None or isinstance(content, str):
        return content
    raise file.error(key, "it must be a token's text")


def _added_tokens(tokenizer: JsonFile, roles: JsonFile, added: JsonFile) -> dict[str, AddedToken]:
    highest = MAX_VOCAB_SIZE - 1
    special = _special_tokens(tokenizer) | _special_tokens(roles)
    tokens = {
        token: AddedToken(added.required_integer(token, least=0, most=highest), is_special=token in special)
        for token in added.names
    }
    decoder = tokenizer.table("added_tokens_decoder")
    if decoder is None:
        return tokens
    for key in decoder.names:
        token = _token(decoder, key)
        if token is None or not key.isdecimal() or len(key) > len(str(highest)):
            raise tokenizer.error("added_tokens_decoder", "it must map token ids to tokens")
        value = decoder.value(key)
        flags = value if isinstance(value, dict) else {}
        tokens[token] = AddedToken(
            int(key),
            is_special=flags.get("special") is True or token in special,
            strips_left=flags.get("lstrip") is True,
            strips_right=flags.get("rstrip") is True,
        )
    return tokens


def _special_tokens(file: JsonFile) -> set[str]:
    """The tokens to which a file gives a role, such as `pad_token`."""
    values = [file.value(key) for key in file.names if key.endswith("_token")]
    others = file.value("additional_special_tokens")
    values += others if isinstance(others, list) else []
    contents = (value.get("content") if isinstance(value, dict) else value for value in values)
    return {content for content in contents if isinstance(content, str)}


def _chat_templates(file: JsonFile) -> dict[str, str]:
    value = file.value("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE: value}
    if not isinstance(value, list):
        raise file.error("chat_template", "it must be a string or a list of named templates")
    templates = {}
    for entry in value:
        match entry:
            case {"name": str(name), "template": str(template)}:
                templates[name] = template
            case _:
                raise ModelError(f"{file.path}: an entry of chat_template lacks its name or its template")
    return templates


def _templates_beside(folder: ModelFolder) -> dict[str, str]:
    texts = {name: folder.text(f"{MORE_TEMPLATES}/{name}.jinja") for name in TEMPLATE_VARIANTS}
    return {name: text for name, text in texts.items() if text is not None}
