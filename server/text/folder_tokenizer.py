"""Loads the tokenizer of a Hugging Face folder: from `tokenizer.json`, else from other programs' files."""

from collections.abc import Sequence

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import ModelFolder
from server.text.sentence_encoder import lowers_texts
from server.text.tokenization.folder_metadata import FolderMetadata
from server.text.tokenization.sentencepiece_vocabulary import SentencePieceVocabulary, SpacePrefix
from server.text.tokenization.tokenizer_json import TokenizerJson
from server.text.tokenization.vocabulary_files import FILES, read_pipeline
from server.text.tokenizer import Tokenizer, end_token_ids

TOKENIZER_JSON = "tokenizer.json"
SENTENCEPIECE_MODEL = "tokenizer.model"


def load_folder_tokenizer(folder: ModelFolder, metadata: FolderMetadata) -> Tokenizer:
    """The tokenizer of a folder; raises ModelError where there is none, or it is damaged or not supported."""
    vocabulary = _read_vocabulary(folder, metadata)
    tokens = vocabulary.tokens
    bos_token_id, eos_token_id = metadata.bos_token_id, None
    if metadata.bos_token is not None:
        bos_token_id = _token_id(folder, "bos_token", metadata.bos_token, tokens)
    if metadata.eos_token is not None:
        eos_token_id = _token_id(folder, "eos_token", metadata.eos_token, tokens)
    adds_bos_token, adds_eos_token = metadata.add_bos_token, metadata.add_eos_token
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    between_ids: tuple[int, ...] | None = None
    if isinstance(vocabulary, TokenizerJson):
        between_ids = vocabulary.between_ids
        prefix_ids, suffix_ids = vocabulary.prefix_ids, vocabulary.suffix_ids
    elif adds_bos_token is None:
        adds_bos_token = True  # the default of transformers
    if adds_bos_token is not None:
        prefix_ids = (bos_token_id,) if adds_bos_token and bos_token_id is not None else ()
    if adds_eos_token is not None:
        suffix_ids = (eos_token_id,) if adds_eos_token and eos_token_id is not None else ()
    return Tokenizer(
        vocabulary,
        bos_token_id=bos_token_id,
        eos_token_ids=end_token_ids((*metadata.eos_token_ids, eos_token_id), tokens, vocabulary.special_ids),
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        between_ids=between_ids,
        vocab_size=metadata.vocab_size,
    )


def _read_vocabulary(folder: ModelFolder, metadata: FolderMetadata) -> TokenizerJson | SentencePieceVocabulary:
    text = folder.text(TOKENIZER_JSON)
    special_tokens = [token for token in (metadata.bos_token, metadata.eos_token) if token is not None]
    is_lowered = lowers_texts(folder)
    if text is not None:
        vocabulary = TokenizerJson.read(folder.path / TOKENIZER_JSON, text, special_tokens, is_lowered=is_lowered)
        _refuse_unknown_tokens(folder, metadata, vocabulary.tokens)
        return vocabulary
    path = folder.file(SENTENCEPIECE_MODEL)
    if path is None:
        found = read_pipeline(folder, metadata)
        if found is None:
            names = (TOKENIZER_JSON, SENTENCEPIECE_MODEL, *FILES)
            raise ModelError(f"{folder.path} has no tokenizer: it has none of {', '.join(names)}")
        return TokenizerJson(
            folder.path / found.file, found.tokenizer, found.decoder, special_tokens, is_lowered=is_lowered
        )
    if is_lowered:
        raise ModelError(f"{folder.path} asks for lower case (do_lower_case), which needs a {TOKENIZER_JSON}")
    # The model's matrices have no rows for tokens beyond them.
    added = {name: token for name, token in metadata.added_tokens.items() if token.token_id < metadata.vocab_size}
    return SentencePieceVocabulary.from_file(path, added, _space_prefix(metadata))


def _space_prefix(metadata: FolderMetadata) -> SpacePrefix:
    """The prefix by transformers' rules; `legacy` is true there where a folder of this kind does not say otherwise."""
    if metadata.add_prefix_space is False:
        return SpacePrefix.NEVER
    return SpacePrefix.FIRST if metadata.legacy is False else SpacePrefix.ALWAYS


def _token_id(folder: ModelFolder, role: str, token: str, tokens: Sequence[str]) -> int:
    if token not in tokens:
        raise ModelError(f"{folder.path}: the {role} {token!r} is not in the tokenizer's vocabulary")
    return tokens.index(token)


def _refuse_unknown_tokens(folder: ModelFolder, metadata: FolderMetadata, tokens: Sequence[str]) -> None:
    """Refuses added tokens that the tokenizer's own file lacks, because it would never find them in a text."""
    for token, added in metadata.added_tokens.items():
        token_id = added.token_id
        if token_id < metadata.vocab_size and (token_id >= len(tokens) or tokens[token_id] != token):
            raise ModelError(
                f"{folder.path}: the added token {token!r} ({token_id}) is not in the tokenizer's file; "
                f"save the tokenizer with transformers, which writes a whole {TOKENIZER_JSON}"
            )
