"""Which backend computes what: as asked for, as the model allows, and as what was built allows."""

import dataclasses

import jax
import pytest

from engine.backends.backends import BACKENDS, choose_backends, kv_dtype
from engine.backends.base.backend import Backends
from engine.backends.base.model_config import ModelConfig
from engine.backends.native import library
from engine.backends.native.library import NativeUnavailable
from engine.backends.xla.backend import BACKEND as XLA
from engine.interface.config import EngineConfig
from engine.interface.setting import settings_of
from engine.weights.layout import Precision

MODEL = ModelConfig(
    vocab_size=301, hidden_size=96, intermediate_size=160, num_layers=1, num_heads=4, num_kv_heads=1, head_dim=16,
    context_length=64,
)  # fmt: skip
WHY = "native kernels were not built: install a compiler"
NARROW_HEADS = dataclasses.replace(MODEL, num_heads=8, num_kv_heads=2, head_dim=8)
ODD_SIZES = dataclasses.replace(MODEL, intermediate_size=150)


@pytest.fixture
def built(monkeypatch):
    monkeypatch.setattr(library, "load", lambda: "avx9")


@pytest.fixture
def missing(monkeypatch):
    def load():
        raise NativeUnavailable(WHY)

    monkeypatch.setattr(library, "load", load)


def choose(model=MODEL, **config):
    return choose_backends(EngineConfig(**config), model)


def names(backends):
    """Of the backends that compute products and attention."""
    return backends.for_products.name, backends.for_attention.name


@pytest.mark.usefixtures("built")
def test_native_where_it_can_be_had():
    backends = choose()
    assert (*names(backends), backends.detail) == ("native", "native", "native kernels for avx9")


@pytest.mark.usefixtures("missing")
def test_xla_where_nothing_was_built_and_why():
    for backends in (choose(), choose(matmul_backend="xla", attention_backend="xla")):
        assert (*names(backends), backends.detail) == ("xla", "xla", WHY)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("matmul", ["native", "xla"])
@pytest.mark.parametrize("attention", ["native", "xla"])
def test_one_asked_for_is_taken(matmul, attention):
    backends = choose(matmul_backend=matmul, attention_backend=attention)
    assert names(backends) == (matmul, attention)
    assert backends.sampler is choose(matmul_backend=matmul).sampler
    assert backends.empty is choose(attention_backend=attention).empty


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("name", ["matmul_backend", "attention_backend"])
def test_native_asked_for_and_missing_is_an_error(name):
    with pytest.raises(ValueError, match=f"{name} is native, but {WHY}"):
        choose(**{name: "native"})


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("model", "backends", "name", "message"),
    [
        (
            NARROW_HEADS,
            ("native", "xla"),
            "attention_backend",
            "takes heads of up to 704 features in multiples of 16; the model's have 8",
        ),
        (dataclasses.replace(MODEL, head_dim=720), ("native", "xla"), "attention_backend", "the model's have 720"),
        (
            ODD_SIZES,
            ("xla", "native"),
            "matmul_backend",
            "takes? sizes in multiples of 32, of keys in multiples of 16; "
            "the model has hidden 96, queries 64, intermediate 150, keys 16",
        ),
        (dataclasses.replace(MODEL, hidden_size=80), ("xla", "native"), "matmul_backend", "hidden 80"),
        (
            dataclasses.replace(MODEL, head_dim=8, num_heads=4, num_kv_heads=1),
            ("xla", "xla"),
            "matmul_backend",
            "keys 8",
        ),
    ],
)
def test_sizes_that_do_not_fit(model, backends, name, message):
    chosen = choose(model)
    assert names(chosen) == backends
    assert chosen.detail.startswith("native kernels for avx9; native ")
    with pytest.raises(ValueError, match=f"{name} is native, but native .*{message}"):
        choose(model, **{name: "native"})


@pytest.mark.usefixtures("built")
def test_an_encoder_of_pictures_that_does_not_fit():
    assert names(choose_backends(EngineConfig(), MODEL, {"vision.qkv": 96})) == ("native", "native")
    chosen = choose_backends(EngineConfig(), MODEL, {"vision.qkv": 96, "vision.down": 72})
    assert names(chosen) == ("xla", "native")
    assert "those of the encoder of pictures are vision.qkv 96, vision.down 72" in chosen.detail


def test_quantised_weights_need_native_products(monkeypatch):
    monkeypatch.setattr(library, "load", lambda: "avx9")
    assert names(choose(quantize="int8")) == ("native", "native")
    assert names(choose(quantize="int4", attention_backend="xla")) == ("native", "xla")
    with pytest.raises(ValueError, match="quantize is int8, which needs native products, not xla"):
        choose(quantize="int8", matmul_backend="xla")
    with pytest.raises(ValueError, match=r"quantize is int4, .*intermediate 150"):
        choose(ODD_SIZES, quantize="int4")


@pytest.mark.usefixtures("missing")
def test_quantised_weights_without_a_library():
    with pytest.raises(ValueError, match=f"quantize is int8, which needs native products, not xla; {WHY}"):
        choose(quantize="int8")


@pytest.mark.parametrize(
    ("attention", "config", "expected"),
    [
        ("native", {}, None),  # what this processor is fastest with
        ("xla", {}, "float32"),
        ("native", {"dtype": "float32"}, "float32"),
        ("xla", {"dtype": "bfloat16"}, "bfloat16"),
        ("native", {"kv_cache_dtype": "int8"}, "int8"),
        ("native", {"dtype": "bfloat16", "kv_cache_dtype": "float32"}, "float32"),
    ],
)
def test_the_type_of_the_pages(attention, config, expected):
    backend = next(backend for backend in BACKENDS if backend.name == attention)
    assert kv_dtype(EngineConfig(**config), Backends(backend, backend, "")) == (expected or library.page_type())


@pytest.mark.parametrize(("device", "expected"), [("cpu", "float32"), ("gpu", "bfloat16"), ("tpu", "bfloat16")])
def test_weights_and_pages_of_auto_have_the_type_that_the_device_multiplies_fast(monkeypatch, device, expected):
    monkeypatch.setattr(jax, "default_backend", lambda: device)
    assert XLA.weights.vector_dtype(Precision("auto", None)) == expected
    assert kv_dtype(EngineConfig(), Backends(XLA, XLA, "")) == expected
    assert XLA.weights.vector_dtype(Precision("float32", None)) == "float32"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; it must be auto, float32 or bfloat16"),
        ({"quantize": "int2"}, "quantize is 'int2'; it must be int8 or int4"),
        ({"quantize": "int8", "dtype": "bfloat16"}, "quantize is int8 and dtype bfloat16; .* need dtype auto"),
        ({"matmul_backend": "cuda"}, "matmul_backend is 'cuda'; it must be auto, native or xla"),
        ({"attention_backend": None}, "attention_backend is None; it must be auto"),
    ],
)
def test_configurations_that_make_no_sense(config, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**config)


def test_the_help_and_the_limit_name_every_body():
    for name in ("matmul_backend", "attention_backend"):
        assert settings_of(EngineConfig)[name].summary.endswith("auto, native or xla")
        for backend in BACKENDS:
            EngineConfig(**{name: backend.name})


def test_a_step_is_opaque_to_xla_where_a_part_of_it_is():
    native, xla = BACKENDS
    assert Backends(native, xla, "").is_opaque_to_xla
    assert Backends(xla, native, "").is_opaque_to_xla
    assert not Backends(xla, xla, "").is_opaque_to_xla
