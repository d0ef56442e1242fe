"""Each named pre-tokenizer against the one that its models' `tokenizer.json` or tiktoken pattern states.

The patterns stand here whole, as they are published; `pre_tokenizers.py` composes its own.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer

from server.text.tokenization.pre_tokenizers import SCHEMES
from tests.server.support.mixed_lines import MIXED_LINES

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbe"
    "ῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮ\u2cf2ⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK_CJK = "[一-龥\u0800-一\uac00-\ud7ff]+"
DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = GPT2 | {"use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


REFERENCES: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [GPT2],
    "smollm": [DIGITS, GPT2],
    "llama-bpe": [split(LLAMA3), BYTES],
    "dbrx": [split(LLAMA3), BYTES],
    "qwen2": [split(QWEN2), BYTES],
    "stablelm2": [split(QWEN2), BYTES],
    "qwen35": [
        split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        BYTES,
    ],
    "ufakzeka": [
        split(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
        BYTES,
    ],
    "laguna": [split(r"[^\n]+|[\n]+"), split(QWEN2), BYTES],
    "glm4": [split(LLAMA3), BYTES],
    "command-r": [DIGITS, GPT2],
    "minicpm5": [
        split(r"\p{N}{1,3}"),
        split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
            r"\s+(?!\S)|\s+"
        ),
        BYTES,
    ],
    "jais-2": [
        split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
            r"\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|"
            r"\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
        ),
        BYTES,
    ],
    "tiny_aya": [split(r"\d{1,3}(?=(?:\d{3})*\b)"), split(O200K), BYTES],
    "granite-embed-multi-97m": [split(O200K), BYTES],
    "spark2_5": [
        split(r"\p{N}{1,3}"),
        split("[一-龥぀-ゟ゠-ヿ]+"),
        split(
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|"
            r"[\r\n]|\s+(?!\S)|\s+"
        ),
        DIGITS,
        BYTES,
    ],
    "gpt-4o": [split(O200K), BYTES],
    "tekken": [split(TEKKEN), BYTES],
    "kimi-k2": [split(KIMI), BYTES],
    "falcon": [
        {"type": "Punctuation", "behavior": "Contiguous"},
        GPT2,
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    ],
    "bloom": [split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), BYTES],
    "viking": [split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), DIGITS, BYTES],
    "deepseek-llm": [
        split("[\r\n]"),
        split(rf"\s?[{DEEPSEEK_LETTERS}]+"),
        split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        split(r"\s+$"),
        split(DEEPSEEK_CJK),
        DIGITS,
        BYTES,
    ],
    "deepseek-coder": [
        split("[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        split(DEEPSEEK_CJK),
        DIGITS,
        BYTES,
    ],
    "deepseek-v3": [split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3_WORDS), BYTES],
    "superbpe": [split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))"), BYTES],
    "bailingmoe": [
        split(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        BYTES,
    ],
    "seed-coder": [
        split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|"
            r"\s+(?!\S)|\s+"
        ),
        BYTES,
    ],
    "exaone-moe": [
        split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|"
            r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        BYTES,
    ],
    "youtu": [
        split("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"),
        split(O200K.replace("{1,3}", "")),
        BYTES,
    ],
    "afmoe": [
        split(r"\p{Nd}{1,510}(?=(?>\p{Nd}{510})*(?:\P{Nd}|$))|\G\p{Nd}{510}"),
        split(r"\A\p{Nd}{1,2}(?=\p{Nd}{3}+\z)"),
        split(r"\A\p{Nd}{3}|\G\p{Nd}{3}"),
        split("[一-鿿㐀-䶿\uf900-\ufaff぀-ゟ゠-ヿ･-ﾟ⼀-⿟\u0e40-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+"),
        split(DEEPSEEK3_WORDS),
        BYTES,
    ],
    "chameleon": [
        split("<sentinel:[0-9]+>"),
        split("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
        split("([\t\n]|    |  )"),
        DIGITS,
        {"type": "Punctuation", "behavior": "Isolated"},
        GPT2,
    ],
}
# The rest of llama.cpp's names, each with one above that stands for the same.
SAME = {
    "gpt-2": "phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert jina-es jina-de "
    "jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe",
    "smollm": "starcoder refact codeshell exaone minerva-7b mellum2",
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    "dbrx": "smaug-bpe chatglm-bpe",
    "glm4": "glm5",
    "qwen2": "f2llmv2",
    "tiny_aya": "cohere2moe",
    "stablelm2": "deepseek-r1-qwen kormo hunyuan megrez grok-2 solar-open",
    "gpt-4o": "llama4 minimax-m2 kanana2 talkie",
    "deepseek-v3": "hunyuan-dense hy_v4 joyai-llm",
    "bloom": "poro-chat gpt3-finnish",
    "bailingmoe": "bailingmoe2 llada-moe",
}

NORMALISED = {"qwen2", "f2llmv2", "qwen35", "command-r", "tiny_aya", "cohere2moe"}


def from_json(stages: list[dict[str, Any]]) -> PreTokenizer:
    content = json.loads(Tokenizer(BPE()).to_str())
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": stages}
    found: PreTokenizer = Tokenizer.from_str(json.dumps(content)).pre_tokenizer
    return found


@pytest.mark.parametrize("name", REFERENCES)
def test_pieces_equal_the_published_ones(name: str) -> None:
    reference = from_json(REFERENCES[name])
    ours = SCHEMES[name].pre_tokenizer()
    for line in MIXED_LINES:
        assert ours.pre_tokenize_str(line) == reference.pre_tokenize_str(line), line


def test_every_name_has_a_reference() -> None:
    others = {name: SCHEMES[first].patterns for first, names in SAME.items() for name in names.split()}
    assert SCHEMES.keys() == {"default", *REFERENCES, *others}
    assert {name: SCHEMES[name].patterns for name in others} == others


def test_the_default_is_that_of_llama_cpp() -> None:
    pieces = [piece for piece, _ in SCHEMES["default"].pre_tokenizer().pre_tokenize_str("It's 12345 =>x  y.\n")]
    assert pieces == ["It", "'", "s", "Ġ", "123", "45", "Ġ", "=>", "x", "Ġ", "Ġy", ".", "Ċ"]


def test_whole_pieces_and_the_first_token() -> None:
    ignoring = {name for name, scheme in SCHEMES.items() if scheme.ignore_merges}
    others = {"tekken", "youtu", "glm4", "glm5", "minicpm5", "granite-embed-multi-97m"}
    assert ignoring == {"llama-bpe", *SAME["llama-bpe"].split(), *others}
    beginning = {name for name, scheme in SCHEMES.items() if scheme.add_bos_token}
    assert beginning == {"llama-bpe", *SAME["llama-bpe"].split(), "tekken", "chameleon"}
    assert {name for name, scheme in SCHEMES.items() if scheme.is_nfc} == NORMALISED
