"""Vocabularies of folders without a `tokenizer.json`: tiktoken's, Mistral's tekken, GPT-2's and BERT's own files.

Each becomes a pipeline of the `tokenizers` library, as transformers converts such files.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import NFC, BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as Stages
from tokenizers.processors import TemplateProcessing

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import MAX_JSON_BYTES, JsonFile, ModelFolder
from server.text.tokenization.byte_alphabet import byte_of_character
from server.text.tokenization.byte_level_bpe import merge_pairs
from server.text.tokenization.folder_metadata import MAX_VOCAB_SIZE, TOKENIZER_CONFIG, FolderMetadata
from server.text.tokenization.pre_tokenizers import SCHEMES

TIKTOKEN, TEKKEN = "tiktoken.model", "tekken.json"
VOCAB, MERGES, WORDS = "vocab.json", "merges.txt", "vocab.txt"
FILES = (TIKTOKEN, TEKKEN, f"{VOCAB} with {MERGES}", WORDS)

# By the class that tokenizer_config.json names, how its texts are split; none of these files says it.
_TIKTOKEN_SCHEMES = {"TikTokenTokenizer": "kimi-k2"}
_MERGED_SCHEMES = {
    "GPT2Tokenizer": "gpt-2", "CodeGenTokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2", "Qwen3_5Tokenizer": "qwen35",
}  # fmt: skip
_BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")

# The control tokens of tekken files that do not list their own; source: mistral-common.
_TEKKEN_CONTROL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
_MAX_TOKEN_BYTES = 1024  # the ways to split a token grow with its length
_MAX_MERGES = 1 << 22  # of all tokens; a vocabulary of 200,000 has half a million
_BYTES, _PIECES = {"type": "ByteLevel"}, {"type": "WordPiece", "prefix": "##"}
_CHARACTERS = {byte: character for character, byte in byte_of_character().items()}  # by the byte


class Pipeline(NamedTuple):
    file: str  # that has the vocabulary
    tokenizer: Tokenizer
    decoder: dict[str, Any]  # as `tokenizer.json` would state it


def read_pipeline(folder: ModelFolder, metadata: FolderMetadata) -> Pipeline | None:
    """The vocabulary of the first of FILES that there is; None where there is none. Raises ModelError."""
    # The model's matrices have no rows for tokens beyond them.
    added = {name: token for name, token in metadata.added_tokens.items() if token.token_id < metadata.vocab_size}
    metadata = replace(metadata, added_tokens=added)
    for name, read in ((TIKTOKEN, _tiktoken), (TEKKEN, _tekken), (VOCAB, _merged), (WORDS, _words)):
        text = folder.text(name, MAX_JSON_BYTES)
        if text is None or (name == VOCAB and folder.file(MERGES) is None):
            continue
        path = folder.path / name
        try:
            return Pipeline(name, read(text, folder, metadata), _PIECES if name == WORDS else _BYTES)
        except ModelError:
            raise
        except Exception as error:  # the library raises no narrower type
            raise ModelError(f"{path} is damaged, or of a kind that is not known: {error}") from error
    return None


def _tiktoken(text: str, folder: ModelFolder, metadata: FolderMetadata) -> Tokenizer:
    """Lines of a token in base 64 and its rank, which is its id."""
    scheme = SCHEMES[_scheme_name(TIKTOKEN, folder, _TIKTOKEN_SCHEMES)]
    ranked: list[tuple[bytes, int]] = []
    for line in text.splitlines():
        if line:
            token, _, rank = line.partition(" ")
            ranked.append((_from_base64(token), int(rank)))
    ids = dict(ranked)
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError("its ranks are not 0, 1, 2 …")
    ordered = sorted(ids, key=ids.__getitem__)
    tokenizer = _ranked(ordered, {token.token_id: name for name, token in metadata.added_tokens.items()}, first_id=0)
    tokenizer.pre_tokenizer = scheme.pre_tokenizer()
    _add(tokenizer, metadata)
    return tokenizer


def _tekken(text: str, folder: ModelFolder, metadata: FolderMetadata) -> Tokenizer:
    """Tokens by rank behind control tokens, and the pattern that splits texts."""
    content: dict[str, Any] = orjson.loads(text)
    config, vocab, control = content["config"], content["vocab"], content.get("special_tokens") or []
    num_control = int(config["default_num_special_tokens"])
    size = min(int(config["default_vocab_size"]), metadata.vocab_size)
    if not 3 <= num_control <= size <= MAX_VOCAB_SIZE:
        raise ValueError(f"it has {num_control} control tokens of {size} tokens")
    names = dict(enumerate(_TEKKEN_CONTROL)) | {int(entry["rank"]): str(entry["token_str"]) for entry in control}
    added = {rank: names.get(rank, f"<SPECIAL_{rank}>") for rank in range(num_control)}
    if len(set(added.values())) < num_control:
        raise ValueError("two of its control tokens have one name")
    tokens = [_from_base64(entry["token_bytes"]) for entry in vocab[: size - num_control]]
    tokenizer = _ranked(tokens, added, first_id=num_control)
    split = Split(Regex(config["pattern"]), behavior="isolated")
    tokenizer.pre_tokenizer = Stages([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in added.values()])
    begin = added[1]
    if begin.startswith("$"):
        raise ValueError(f"the token that begins texts is {begin!r}, which would stand for the text itself")
    tokenizer.post_processor = TemplateProcessing(single=f"{begin} $A", pair=None, special_tokens=[(begin, 1)])
    return tokenizer


def _merged(text: str, folder: ModelFolder, metadata: FolderMetadata) -> Tokenizer:
    """GPT-2's two files: ids by token, and merges, the best first."""
    scheme = SCHEMES[_scheme_name(VOCAB, folder, _MERGED_SCHEMES)]
    ids: dict[str, int] = orjson.loads(text)
    lines = (folder.text(MERGES, MAX_JSON_BYTES) or "").split("\n")
    merges = [line for line in lines if line and not line.startswith("#version")]
    ids |= {name: token.token_id for name, token in metadata.added_tokens.items()}
    tokenizer = Tokenizer(BPE(ids, merge_pairs(merges, str(folder.path / MERGES))))
    tokenizer.pre_tokenizer = scheme.pre_tokenizer()
    if scheme.is_nfc:
        tokenizer.normalizer = NFC()
    _add(tokenizer, metadata)
    return tokenizer


def _words(text: str, folder: ModelFolder, metadata: FolderMetadata) -> Tokenizer:
    """BERT's list of pieces, one in a line."""
    config = folder.json(TOKENIZER_CONFIG) or JsonFile(folder.path / TOKENIZER_CONFIG, {})
    name = _class_name(config)
    if name not in (None, *_BERT_CLASSES):
        raise ModelError(
            f"{folder.path / WORDS}: {name} is not known with such a file; known are {', '.join(_BERT_CLASSES)}"
        )
    pieces = text.removesuffix("\n").split("\n")
    ids = {piece.removesuffix("\r"): token_id for token_id, piece in enumerate(pieces)}
    if missing := [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in ids]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    is_lower, strips, splits = map(config.flag, ("do_lower_case", "strip_accents", "tokenize_chinese_chars"))
    tokenizer.normalizer = BertNormalizer(
        lowercase=is_lower is not False, strip_accents=strips, handle_chinese_chars=splits is not False
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    special = [token for token in ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]") if token in ids]
    tokenizer.add_special_tokens(special)
    _add(tokenizer, metadata)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    return tokenizer


def _ranked(tokens: Sequence[bytes], added: Mapping[int, str], first_id: int) -> Tokenizer:
    """A byte-level BPE of tokens by rank: of two neighbours, those are joined first whose sum has the lowest rank.

    So each way to split a token into two others is a merge, and a text that is a token remains one (tiktoken).
    """
    if len(tokens) > MAX_VOCAB_SIZE or max(map(len, tokens), default=0) > _MAX_TOKEN_BYTES:
        raise ValueError(f"it has over {MAX_VOCAB_SIZE} tokens, or one of over {_MAX_TOKEN_BYTES} bytes")
    written = [token.decode("latin-1").translate(_CHARACTERS) for token in tokens]
    ranks = {token: rank for rank, token in enumerate(written)}
    merges: list[tuple[str, str]] = []
    for token in written:
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        pairs = [pair for pair in halves if pair[0] in ranks and pair[1] in ranks]
        merges += sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]])) if len(pairs) > 1 else pairs
        if len(merges) > _MAX_MERGES:
            raise ValueError(f"its tokens are made of others in over {_MAX_MERGES} ways")
    ids = {name: token_id for token_id, name in added.items()}
    ids |= {token: first_id + rank for token, rank in ranks.items()}
    return Tokenizer(BPE(ids, merges, ignore_merges=True))


def _add(tokenizer: Tokenizer, metadata: FolderMetadata) -> None:
    """Has texts searched for the tokens that other files add; raises ValueError where one has another id."""
    added: Iterable[tuple[str, Any]] = sorted(metadata.added_tokens.items(), key=lambda entry: entry[1].token_id)
    for name, token in added:
        flags = {"lstrip": token.strips_left, "rstrip": token.strips_right, "normalized": False}
        if token.is_special:
            tokenizer.add_special_tokens([AddedToken(name, special=True, **flags)])
        else:
            tokenizer.add_tokens([AddedToken(name, **flags)])
        if tokenizer.token_to_id(name) != token.token_id:
            raise ValueError(f"the token {name!r} has the id {tokenizer.token_to_id(name)}, and not {token.token_id}")


def _scheme_name(name: str, folder: ModelFolder, schemes: Mapping[str, str]) -> str:
    config = folder.json(TOKENIZER_CONFIG) or JsonFile(folder.path / TOKENIZER_CONFIG, {})
    found = _class_name(config)
    if found is None or found not in schemes:
        raise ModelError(
            f"{folder.path / name} does not say how texts are split, and the tokenizer_class {found} of "
            f"{TOKENIZER_CONFIG} is not known with such a file; known are {', '.join(schemes)}"
        )
    return schemes[found]


def _class_name(config: JsonFile) -> str | None:
    name = config.text("tokenizer_class")
    return None if name is None else re.sub(r"Fast$", "", name)


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except NotBase64 as error:
        raise ValueError(f"{text[:40]!r} is not base 64") from error
