"""The programs of encoders of pictures."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.backends.base.token_layout import pages_per_block
from engine.interface.types import PromptPicture
from engine.schedule.picture_cache import PictureCache
from engine.schedule.request import Request
from engine.step import picture_encoding
from engine.step.inputs import StepBatch
from engine.step.programs import ArrayTrees
from engine.step.shapes import StepShape
from sampling.host.params import SamplingParams
from sampling.state import Slots
from tests.engine.step.test_exact_products import PICTURES, Lowered
from tests.golden.pictures.tiny_folder import write_tiny_folder
from tests.patience import PATIENCE_S


def test_kept_programs_are_nested_as_those_that_are_compiled(tmp_path: Path) -> None:
    """Else JAX cannot load them at the next start, and they are compiled anew."""
    golden = json.loads((PICTURES / "smolvlm.json").read_text(encoding="utf-8"))
    lowered = Lowered(write_tiny_folder(tmp_path, golden), "float32")
    batch = StepBatch.padding(StepShape(1, 0), 1, pages_per_block(32))
    trees = ArrayTrees(lowered.params, lowered.kv, Slots.zeros(1), Mock(), batch)
    assert lowered.model.encoder is not None
    lowerings = picture_encoding.lowerings(lowered.params, lowered.kv, lowered.model.encoder, 128, lowered.backends)
    assert {key[0] for key in lowerings if isinstance(key, tuple)} == {
        picture_encoding.BEGIN, picture_encoding.LAYER, picture_encoding.END, picture_encoding.STORE,
    }  # fmt: skip
    for key, lower in lowerings.items():
        program, kept = lower(), trees.of(key)
        assert program.in_tree == jax.tree.structure((kept.arguments, {}))
        assert program.out_tree == jax.tree.structure(kept.results)


def seeing() -> Request:
    picture = PromptPicture(3, 2, b"a", np.zeros((1, 1, 3), np.uint8))
    return Request("r", [1] * 9, SamplingParams(), seed=0, max_length=20, pictures=(picture,))


class Encoding:
    """An encoder of one layer, whose program may be made to wait or to fail."""

    def __init__(self) -> None:
        self.cache = PictureCache(2, 2, 100)
        self.reached, self.opened, self.has_ended = threading.Event(), threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.num_layers_run = 0
        encoder = Mock(num_layers=1, buckets=lambda length: [2], pixels_shape=lambda bucket: (1, 1, 3))
        programs: dict[Any, Any] = {(kind, 2): self.program for kind in (picture_encoding.BEGIN, picture_encoding.END)}
        programs |= {(picture_encoding.LAYER, 2): self.layer, (picture_encoding.STORE, 2): lambda kv, *_: kv}
        self.pictures = picture_encoding.PictureEncoding(self.cache, Mock(), programs, encoder, 128)  # type: ignore[arg-type]
        self.pictures.on_end = self.has_ended.set

    def program(self, params: Any, x: Any, *others: Any) -> jax.Array:
        return jnp.asarray(x)

    def layer(self, params: Any, x: jax.Array, *others: Any) -> jax.Array:
        self.num_layers_run += 1
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return x

    def encode(self) -> None:
        """Encodes the next picture, and stores it."""
        self.opened.set()
        self.has_ended.clear()
        assert not self.pictures.advance()
        assert self.has_ended.wait(PATIENCE_S)
        assert self.pictures.advance()


def test_a_picture_whose_encoding_has_been_ended_is_encoded_anew() -> None:
    """By a later loop of the engine, in which else whoever wants the picture would wait for ever."""
    encoding, request = Encoding(), seeing()
    assert encoding.cache.must_wait(request, 0)
    assert not encoding.pictures.advance()
    assert encoding.reached.wait(PATIENCE_S)
    encoding.opened.set()
    encoding.pictures.close()
    assert not encoding.pictures.is_busy
    encoding.cache.release(request)
    assert encoding.cache.must_wait(request, 0)
    encoding.encode()
    assert not encoding.cache.must_wait(request, 0)
    assert encoding.num_layers_run == 2


def test_a_picture_whose_encoding_has_failed_is_encoded_anew() -> None:
    encoding, request = Encoding(), seeing()
    encoding.error = MemoryError()
    encoding.opened.set()
    assert encoding.cache.must_wait(request, 0)
    assert not encoding.pictures.advance()
    assert encoding.has_ended.wait(PATIENCE_S)
    with pytest.raises(MemoryError):
        encoding.pictures.advance()
    encoding.error = None
    encoding.encode()
    assert not encoding.cache.must_wait(request, 0)
