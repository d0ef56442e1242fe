"""Whether two files hold the same model: what is compared are configurations and, bit by bit, weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.backends.xla.matrices import ArrayLayout
from engine.models.architectures.phi.phi3 import Phi3
from engine.models.architectures.phi.phimoe import PhiMoe
from engine.models.open_model import open_model
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.model import Model
from engine.weights.layout import Precision


def assert_same_model(one: Path, other: Path, context_length: int) -> None:
    """
    Args:
        context_length: tokens of the longest context that is served, by which some models compute in another way.
    """
    opened = [open_model(path, language_model_only=True) for path in (one, other)]  # GGUF files have no encoders
    assert_same(*(each.model.for_context(context_length) for each in opened))
    first, second = (each.load(ArrayLayout(), Precision("float32", None), lambda *step: None).params for each in opened)
    assert first.keys() == second.keys()
    for leaf, values in first.items():
        np.testing.assert_array_equal(values, second[leaf], err_msg=leaf)


def assert_same(first: Model, second: Model) -> None:
    """All but the last digits of rotary tables, which the formats state in different ways."""
    configs = [model.config for model in (first, second)]
    assert isinstance(first, type(second))  # files of Mistral's models are files of Llama
    assert all(isinstance(config, DecoderConfig) for config in configs)
    if isinstance(first, Phi3 | PhiMoe):
        configs = [replace(config, longrope=None) for config in configs]  # it made the rotary tables
    assert replace(configs[0], rotary=()) == replace(configs[1], rotary=())
    for one, other in zip(configs[0].rotary, configs[1].rotary, strict=True):
        np.testing.assert_allclose(one.frequencies, other.frequencies, rtol=1e-6)
        assert one.magnitude == pytest.approx(other.magnitude, rel=1e-6)
