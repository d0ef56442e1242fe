r"""Pre-tokenizers: how texts are split before tokens are merged, for every name that `tokenizer.ggml.pre` may have.

A GGUF file names the split of its model. The names are those of llama.cpp (src/llama-vocab.cpp), in which converters
write them. What each name means is stated here as the models' own `tokenizer.json` or tiktoken pattern states it, in
the syntax of Oniguruma, which the `tokenizers` library runs. That differs from llama.cpp in rare texts alone, where
its own engine has to approximate classes of characters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Punctuation, Sequence, Split

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _llama3(number: str) -> str:
    """The pattern of Llama 3, of which many models have a copy with another rule for numbers."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased_words(number: str, *, contraction: str = "", without: str = "", behind_symbols: str = r"[\r\n/]*") -> str:
    """The pattern of GPT-4o: a word ends where a capital follows a small letter.

    Words have no characters of `without`, and may end with `contraction`; runs of symbols may end with
    `behind_symbols`.
    """
    start = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    end = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{start}*{end}+{contraction}|{before}{start}+{end}*{contraction}"
    return rf"{words}|{number}| ?[^\s\p{{L}}\p{{N}}]+{behind_symbols}|{_SPACES}"


# Of the letters that have a case, DeepSeek's list leaves out blocks that it could not yet know, and a few more.
_DEEPSEEK_LETTERS = (
    r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{560}-\x{588}\x{10C7}\x{10CD}\x{10D0}-\x{10FF}\x{1C80}-\x{1C8F}\x{2D00}-\x{2D2D}"
    r"\x{A790}-\x{A7FF}\x{AB30}-\x{AB6F}\x{10570}-\x{105BF}\x{16E40}-\x{16E7F}\x{1D400}-\x{1D7FF}\x{1DF00}-\x{1DFFF}]]"
)
_DEEPSEEK_CJK = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_DEEPSEEK3_CJK = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _SPACES
)
_AFMOE_SCRIPTS = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}"
    r"\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}"
    r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)
_YOUTU_SCRIPTS = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[！…“”‘’—：；，\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|"
    + _DEEPSEEK3_CJK
)
_BLOOM = r" ?[^\s(|).,!?…。，、।۔،]+"


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one family of models tokenizes, apart from its vocabulary and merges."""

    # Each pattern splits the pieces of the one before it, into its matches and the text between them.
    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a whole piece that is in the vocabulary becomes one token, without merges
    is_nfc: bool = False  # texts are first normalised to Unicode's composed form
    add_bos_token: bool = False  # the default if the file does not say

    def pre_tokenizer(self) -> PreTokenizer:
        """Splits a text, and then writes each byte as a character of the byte-level alphabet."""
        splits = [Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


class _FalconScheme(Scheme):
    """Falcon looks for digits after bytes have become characters, a few of which are numbers themselves."""

    def pre_tokenizer(self) -> PreTokenizer:
        return Sequence(
            [
                Punctuation(behavior="contiguous"),
                ByteLevel(add_prefix_space=False, use_regex=True),
                Digits(individual_digits=False),
                Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"),
            ]
        )


def _named(scheme: Scheme, *names: str) -> dict[str, Scheme]:
    return dict.fromkeys(names, scheme)


_LLAMA3 = (_llama3(r"\p{N}{1,3}"),)
_QWEN2 = (_llama3(r"\p{N}"),)
_QWEN2_WORDS = _QWEN2[0].removeprefix(f"{_CONTRACTION}|")
# Marks belong to the letters before them.
_QWEN3_5 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
)
_GPT4O = (_cased_words(r"\p{N}{1,3}", contraction=f"{_CONTRACTION}?"),)
_DEEPSEEK3 = (r"\p{N}{1,3}", _DEEPSEEK3_CJK, _DEEPSEEK3_WORDS)
_SPARK_WORDS = _DEEPSEEK3_WORDS.replace(rf"[\r\n]*|{_SPACES}", r"|[\r\n]|\s+(?!\S)|\s+")
# Jais 2 has tokens of so many spaces.
_JAIS2_SPACES = r"\s*[\r\n]+|" + "".join(rf"\s{{{2**n}}}(?!\S)|" for n in range(9, 1, -1)) + r"\s{1,2}(?!\S)|\s"

SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        # The default of llama.cpp where a file names none, or "default".
        **_named(Scheme((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")), "default"),
        **_named(
            Scheme((_GPT2,)),
            *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0"),
            *("mellum", "modern-bert", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"),
            "roberta-bpe",
        ),
        **_named(
            Scheme((r"\p{N}", _GPT2)),
            *("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
        ),
        **_named(Scheme((r"\p{N}", _GPT2), is_nfc=True), "command-r"),
        **_named(
            Scheme(_LLAMA3, ignore_merges=True, add_bos_token=True),
            *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        ),
        **_named(Scheme(_LLAMA3), "dbrx", "smaug-bpe", "chatglm-bpe"),
        **_named(Scheme(_LLAMA3, ignore_merges=True), "glm4", "glm5"),
        **_named(Scheme((r"\p{N}{1,3}", _llama3(r"\p{N}+")), ignore_merges=True), "minicpm5"),
        **_named(Scheme((_LLAMA3[0].replace(_SPACES, _JAIS2_SPACES),)), "jais-2"),
        **_named(Scheme(_QWEN2, is_nfc=True), "qwen2", "f2llmv2"),
        **_named(Scheme(_QWEN3_5, is_nfc=True), "qwen35"),
        **_named(Scheme((_QWEN2_WORDS,)), "ufakzeka"),  # of Turkish, whose endings follow an apostrophe
        **_named(Scheme((r"\n+", *_QWEN2)), "laguna"),
        **_named(Scheme(_QWEN2), "deepseek-r1-qwen", "kormo", "stablelm2", "hunyuan", "megrez", "grok-2", "solar-open"),
        **_named(Scheme(_GPT4O), "gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"),
        **_named(Scheme(_GPT4O, ignore_merges=True), "granite-embed-multi-97m"),
        **_named(Scheme((r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O), is_nfc=True), "tiny_aya", "cohere2moe"),
        **_named(Scheme((_cased_words(r"\p{N}"),), ignore_merges=True, add_bos_token=True), "tekken"),
        **_named(
            Scheme(
                (
                    r"\p{Han}+|"
                    + _cased_words(
                        r"\p{N}{1,3}",
                        contraction=f"{_CONTRACTION}?",
                        without=r"&&[^\p{Han}]",
                        behind_symbols=r"[\r\n]*",
                    ),
                )
            ),
            "kimi-k2",
        ),
        **_named(
            Scheme((_YOUTU_SCRIPTS, _cased_words(r"\p{N}", contraction=f"{_CONTRACTION}?")), ignore_merges=True),
            "youtu",
        ),
        **_named(Scheme(_DEEPSEEK3), "deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"),
        **_named(Scheme((r"\p{N}{1,3}", _DEEPSEEK3_CJK, _SPARK_WORDS, r"\p{N}")), "spark2_5"),
        **_named(
            Scheme(
                (
                    r"[\r\n]",
                    rf"\s?{_DEEPSEEK_LETTERS}+",
                    r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+",
                    r"\s+$",
                    _DEEPSEEK_CJK,
                    r"\p{N}",
                )
            ),
            "deepseek-llm",
        ),
        **_named(Scheme((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")), "deepseek-coder"),
        **_named(_FalconScheme(()), "falcon"),
        **_named(Scheme((_BLOOM,)), "bloom", "poro-chat", "gpt3-finnish"),
        **_named(Scheme((_BLOOM, r"\p{N}")), "viking"),
        **_named(Scheme((r"\p{N}+", r"(?=(\d{3})+(?!\d))")), "superbpe"),
        **_named(
            Scheme(
                (
                    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
                    r"\s+(?!\S)|\s+",
                )
            ),
            *("bailingmoe", "bailingmoe2", "llada-moe"),
        ),
        **_named(
            Scheme((rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)),
            "seed-coder",
        ),
        **_named(
            Scheme(
                (
                    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
                )
            ),
            "exaone-moe",
        ),
        # Digits in groups of three, counted from the right.
        **_named(Scheme((r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*+(?!\p{Nd}))", _AFMOE_SCRIPTS, _DEEPSEEK3_WORDS)), "afmoe"),
        **_named(
            Scheme(
                (
                    "<sentinel:[0-9]+>",
                    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                    r"([\t\n]|    |  )",
                    r"\p{N}",
                    r"[\p{P}!-/:-@\[-`{-~]",
                    _GPT2,
                ),
                add_bos_token=True,
            ),
            "chameleon",
        ),
    }
)
