"""A sample of the files of benchmarks.chaos, in the process that decodes pictures."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from benchmarks.chaos.pictures.cases import picture_cases
from server.media.picture_decoder import PictureDecoder, UndecodablePicture


@pytest.mark.asyncio
async def test_every_file_is_read_or_refused() -> None:
    wrong, refused = [], []
    with closing(PictureDecoder()) as decoder:
        for case in picture_cases(random.Random(5), 120, is_light=True):
            try:
                pixels = await decoder.decode(case.content, is_base64=False, height=5, width=3, resample=2)
            except UndecodablePicture as error:
                refused.append(str(error))
                is_read = False
            else:
                assert pixels.shape == (5, 3, 3)
                is_read = True
            if case.is_good not in (None, is_read):
                wrong.append(case.name)
    assert wrong == []
    assert sum("are allowed" in words for words in refused) >= 5  # by the sizes that their heads claim
