"""BPE vocabularies that write a space as a mark and other bytes as <0xFF>, as Gemma 4 has them in GGUF files.

They are SentencePiece's by their tokens, and have merges in the place of scores. The pipeline is that of Gemma's own
`tokenizer.json`, through the `tokenizers` library.
"""

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend, Replace, Sequence
from tokenizers.pre_tokenizers import Split

from engine.interface.errors import ModelError
from server.text.tokenization.byte_level_bpe import merge_pairs
from server.text.tokenization.gguf_metadata import GgufMetadata, TokenType
from server.text.tokenization.sentencepiece_proto import SPACE_MARK
from server.text.tokenization.sentencepiece_vocabulary import bytes_of_pieces
from server.text.tokenization.tokenizers_encoder import TokenizersEncoder

# The names by which `tokenizer.ggml.pre` asks for this kind where `tokenizer.ggml.model` says gpt2.
PRE_TOKENIZERS = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})


class SpacedBpe(TokenizersEncoder):
    """A vocabulary of a GGUF file; raises ModelError if its merges do not fit it."""

    def __init__(self, metadata: GgufMetadata) -> None:
        tokens, types = metadata.tokens, metadata.token_types
        vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
        unknown = None if metadata.unknown_token_id is None else tokens[metadata.unknown_token_id]
        pairs = merge_pairs(metadata.merges)
        try:
            model = BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        except Exception as error:  # the library raises no narrower type
            raise ModelError(f"the merges (tokenizer.ggml.merges) do not fit the vocabulary: {error}") from error
        tokenizer = Tokenizer(model)
        spaces = Replace(" ", SPACE_MARK)
        tokenizer.normalizer = Sequence([Prepend(SPACE_MARK), spaces]) if metadata.add_space_prefix else spaces
        # The longer a piece, the longer its merging takes; no token joins the end of a line with what is before it.
        tokenizer.pre_tokenizer = Split("\n", behavior="contiguous")
        added = {
            vocabulary[tokens[i]]: AddedToken(tokens[i], normalized=False, special=types[i] == TokenType.CONTROL)
            for i in metadata.other_ids
            if types[i] in (TokenType.CONTROL, TokenType.USER_DEFINED) and tokens[i]
        }
        tokenizer.add_tokens(list(added.values()))
        super().__init__(tokenizer, added, {vocabulary[tokens[i]] for i in metadata.control_ids})
        self.tokens = tokens
        try:
            self.token_bytes = bytes_of_pieces(tokens, types)
        except ValueError as error:
            raise ModelError(f"the vocabulary is not accepted: {error}") from error
