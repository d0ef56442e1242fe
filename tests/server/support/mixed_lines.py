"""A thousand lines of mixed scripts, made by a seed, on which tokenizers are compared with their references."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType

LINES_OF_A_SCRIPT = 100

Draw = Callable[[random.Random], str]


def _of(characters: str) -> Draw:
    return lambda rng: characters[rng.randrange(len(characters))]


def _between(first: int, last: int) -> Draw:
    return lambda rng: chr(rng.randrange(first, last + 1))


def _one_of(*texts: str) -> Draw:
    return lambda rng: texts[rng.randrange(len(texts))]


def _words(text: str) -> Draw:
    """One of the words of `text`, which have spaces between them."""
    return _one_of(*text.split(" "))


_LATIN = (
    "the Wind isn't I'LL we've naïve Straße façade DON'T e\u0301te\u0301 O'Reilly's HTTPServer camelCase x œuvre Ďábel "
    "ŝaĝo well-known (so) “so” … — end."
)
_CODE = (
    "def return if(x== != -> :: { } }}; () [0] <table> </td> <h1> #include // /* \\n 'a' \"b\" x_1 __init__ 0xFF 1e-9 "
    "a.b.c $VAR `cmd` @x | && ~ ^ %d"
)
_GAPS = (" ", " ", " ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\n" * 4, "\r\n", " \n", "\n ", "\u00a0", "\u3000", "")
_SPACES = (" ", "  ", " " * 7, " " * 40, "\t", "\t" * 5, "\n", "\n" * 3, "\n" * 33, "\r", "\v", "\f", "\x85", "\u00a0")

_DRAWS: Mapping[str, tuple[Draw, ...]] = MappingProxyType(
    {
        "latin": (_words(_LATIN), _of("abcdefghijklmnopqrstuvwxyzABCDEFGHÄÖÜéèñçßøåþðłž")),
        "greek and cyrillic": (
            _between(0x3B1, 0x3C9),
            _between(0x410, 0x44F),
            _words("Москва ἀρχή όχι, Привет! ё їжак"),
        ),
        "cjk": (
            _between(0x4E00, 0x9FA5),
            _between(0x3041, 0x3093),
            _between(0x30A1, 0x30F6),
            _between(0xAC00, 0xD7A3),
            _words("， 。 ！ 「 」 Ａ １２ ㍿ 한국어 日本語 𠮷 ㄅㄆ"),
        ),
        "arabic and hebrew": (
            _between(0x621, 0x64A),
            _between(0x5D0, 0x5EA),
            _words("، ؟ َ ١٢٣ שלום السلام \u200f ﷺ"),
        ),
        "indic and thai": (_between(0x904, 0x939), _words("ा ् िं नमस्ते । १२३ ไทย สวัสดี தமிழ் ក្រ বাং")),
        "emoji": (
            _between(0x1F600, 0x1F64F),
            _between(0x1F300, 0x1F5FF),
            _words("👩\u200d👩\u200d👧 🏴\u200d☠\ufe0f 🇩🇪 👍🏽 ☕\ufe0f ❤ 1\ufe0f\u20e3 ™ → ∑ € ① ½ ⅷ ²"),
        ),
        "code": (_words(_CODE), _one_of("\n    ", "\n\t\t", "\n        ", "\n", "    ")),
        "numbers": (
            _of("0123456789"),
            _words("1234567 12 007 3.14159 1,234,567.89 2026-11-22 1000000 99% -5 ٣٤ １２３４"),
        ),
        "controls": (
            _between(0x00, 0x1F),
            _between(0x7F, 0x9F),
            _words("a é \ufeff \u200b \u2028 \ufffd \u00ad \ue000 \U000f0000 \u2060"),
        ),
        "spaces": (_one_of(*_SPACES), _words("\u2003 \u3000 \u2581 a 1 . é")),
    }
)
SCRIPTS = tuple(_DRAWS)


def lines_of(script: str) -> list[str]:
    """The lines of one of SCRIPTS; always the same."""
    rng = random.Random(f"eagre {script}")
    return [_line(rng, _DRAWS[script]) for _ in range(LINES_OF_A_SCRIPT)]


def _line(rng: random.Random, draws: tuple[Draw, ...]) -> str:
    pieces = []
    for _ in range(rng.randrange(1, 16)):
        # Every tenth word is of any script, so that the borders between scripts are met too.
        own = draws if rng.randrange(10) else _DRAWS[SCRIPTS[rng.randrange(len(SCRIPTS))]]
        pieces += [own[rng.randrange(len(own))](rng) for _ in range(rng.randrange(1, 5))]
        pieces.append(_GAPS[rng.randrange(len(_GAPS))])
    return "".join(pieces)


MIXED_LINES = tuple(line for script in SCRIPTS for line in lines_of(script))
