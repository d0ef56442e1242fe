"""The alphabet of bytes, against a look at one character at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.text.tokenization.byte_alphabet import byte_of_character, bytes_of

ALPHABET = byte_of_character()


def test_the_alphabet_is_one_to_one() -> None:
    assert sorted(ALPHABET.values()) == list(range(256))
    assert ALPHABET["Ġ"] == ord(" ")
    assert ALPHABET["Ċ"] == ord("\n")


def one_at_a_time(token: str) -> bytes:
    if all(character in ALPHABET for character in token):
        return bytes(ALPHABET[character] for character in token)
    return token.encode("utf-8")


tokens = st.one_of(
    st.text(st.sampled_from(sorted(ALPHABET)), max_size=8),
    st.text(max_size=4),
    st.sampled_from(["", " ", "\n", "<|im_end|>", "Ġa", "日本", "\U0010ffff", "Ņ", "ǿ", "Ȁ"]),
)


@given(st.lists(tokens, max_size=20))
def test_tokens_stand_for_the_bytes_of_their_characters_or_for_themselves(written: list[str]) -> None:
    assert bytes_of(written) == [one_at_a_time(token) for token in written]
