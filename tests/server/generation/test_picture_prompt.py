"""Raw texts with pictures."""

from __future__ import annotations

from server.generation.picture_prompt import PicturePrompt
from server.media.decoded_picture import DecodedPicture
from server.media.picture import Picture


def test_the_tokens_of_pictures_are_no_little_text() -> None:
    picture = Picture("prompt", "data", "data:image/png;base64,", "auto")
    prompt = PicturePrompt(["ab", picture, "c", picture])
    assert prompt.num_chars == 3
    decoded = prompt.with_decoded({picture: DecodedPicture((), "<image>" * 5000)})
    assert decoded.num_chars == 3 + 2 * 35_000  # which is not tokenised on the loop
