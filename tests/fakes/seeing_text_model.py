"""A text model that takes pictures, each as three positions."""

from __future__ import annotations

from server.media.picture_format import PictureFormat
from server.media.tiling import Tiling
from tests.fakes.text_model import FakeTextModel

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<img>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{{ '\n' }}{% endfor %}assistant:"
)
FORM = PictureFormat(
    Tiling(height=4, width=6, resample=2),
    num_tokens=3,
    most=2,
    marker="<img>",
    before="[",
    token="\x01",
    token_id=1,
    behind="]",
)


class SeeingTextModel(FakeTextModel):
    pictures = FORM

    def __init__(self) -> None:
        super().__init__(TEMPLATE)
