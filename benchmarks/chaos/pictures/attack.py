"""Attacks with pictures, on a server whose model reads text alone."""

import base64

from benchmarks.chaos.pictures.cases import PictureCase, picture_cases
from benchmarks.chaos.target import Target

_CHAT = "/v1/chat/completions"
_NUM_CASES = 120
_cases: list[PictureCase] = []


async def hostile_pictures(target: Target) -> None:
    """A file that may be dangerous to decode: nobody decodes it for a model that reads text alone."""
    if not _cases:
        _cases.extend(picture_cases(target.draw, _NUM_CASES, is_light=True))
    url = "data:image/png;base64," + base64.b64encode(target.draw.choice(_cases).content).decode()
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}
    status, answer = await target.ask("hostile pictures", "POST", _CHAT, (400, 429), json=body)
    if status == 400 and b"messages[0].content[1]" not in answer:
        target.ledger.fail(f"hostile pictures: the part is not named: {answer[:200]!r}")
