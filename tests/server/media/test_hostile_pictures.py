"""A sample of the files of benchmarks.chaos, in the process that decodes pictures."""

from __future__ import annotations

import base64
import random
from contextlib import closing

import pytest

from benchmarks.chaos.pictures.cases import picture_cases
from server.media.picture import Picture
from server.media.picture_loader import PictureLoader
from server.protocol.errors import ApiError
from tests.fakes.seeing_text_model import FORM

PART = "messages[0].content[1]"


@pytest.mark.asyncio
async def test_every_file_is_read_or_refused() -> None:
    wrong, refused = [], []
    with closing(PictureLoader((), None)) as loader:
        for case in picture_cases(random.Random(5), 120, is_light=True):
            url = "data:image/png;base64," + base64.b64encode(case.content).decode()
            picture = Picture(PART, "image_url", url)
            try:
                loaded = await loader.load([picture], FORM)
            except ApiError as error:
                refused.append(error)
                is_read = False
            else:
                is_read = picture in loaded
            if case.is_good not in (None, is_read):
                wrong.append(case.name)
    assert wrong == []
    assert {(error.status, error.param) for error in refused} == {(400, PART)}
    assert all(PART in error.message for error in refused)
    assert sum("are allowed" in error.message for error in refused) >= 5  # by the sizes that their heads claim
