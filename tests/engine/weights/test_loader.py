"""What every layout of weights has in common: what is counted, and in which type norms and biases are."""

import pytest
from gguf import GGMLQuantizationType as Kind

from engine.backends.native.matrices import PackedLayout
from engine.backends.xla.matrices import ArrayLayout
from engine.models.open_model import open_model
from engine.weights.layout import Precision
from tests.gguf_tensors import HIDDEN, INTERMEDIATE, NUM_LAYERS, VOCAB_SIZE, write_random_model

LAYOUTS = [
    (ArrayLayout(), Precision("float32", None), "float32"),
    (ArrayLayout(), Precision("bfloat16", None), "bfloat16"),
    (PackedLayout(), Precision("float32", None), "float32"),
    (PackedLayout(), Precision("auto", None), "bfloat16+int8"),
    (PackedLayout(), Precision("auto", "int4"), "int4+int8"),
]


def _name(value):
    """The same in every process that collects the tests, and so without the address of an object."""
    return type(value).__name__ if isinstance(value, ArrayLayout | PackedLayout) else str(value)


@pytest.fixture
def opened(tmp_path):
    """A model of floats, the embedding aside."""
    return open_model(
        write_random_model(tmp_path / "model.gguf", lambda name: Kind.Q8_0 if name == "token_embd" else Kind.F32)
    )


@pytest.mark.parametrize(("layout", "precision", "dtype"), LAYOUTS, ids=_name)
def test_parameters_are_counted_without_what_pads_them(opened, layout, precision, dtype):
    weights = opened.load(layout, precision, lambda *step: None)
    of_layer = HIDDEN * (HIDDEN + 2 * 128 + HIDDEN + 3 * INTERMEDIATE + 2)
    assert weights.num_parameters == 2 * VOCAB_SIZE * HIDDEN + NUM_LAYERS * of_layer + HIDDEN
    assert weights.dtype == dtype


@pytest.mark.parametrize(("layout", "precision", "dtype"), LAYOUTS, ids=_name)
def test_progress_counts_each_byte_once(opened, layout, precision, dtype):
    told = []
    opened.load(layout, precision, lambda *step: told.append(step))
    assert {step[0] for step in told} == {"load weights"}
    assert [step[1] for step in told] == sorted({step[1] for step in told})
    assert told[-1][1] == told[-1][2] > 0


@pytest.mark.parametrize(
    ("layout", "dtype", "expected"),
    [
        (PackedLayout(), "bfloat16", "float32"),
        (ArrayLayout(), "float32", "float32"),
        (ArrayLayout(), "auto", "float32"),
        (ArrayLayout(), "bfloat16", "bfloat16"),
    ],
    ids=_name,
)
def test_the_type_of_norms(opened, layout, dtype, expected):
    params = opened.load(layout, Precision(dtype, None), lambda *step: None).params
    assert params["attention_norm"].dtype == params["output_norm"].dtype == expected
