"""Which variant is loaded, and what is said where none can be."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from engine.backends.base.operands import Activation, NormKind, Picks
from engine.backends.base.token_layout import token_layout
from engine.backends.native import library, variants
from engine.backends.native.library import NativeUnavailable
from engine.backends.native.matrices import PackedLayout
from engine.backends.native.products import add_experts, norm_product
from engine.backends.native.sources import digest
from engine.backends.native.variants import EMULATION, variants_of
from engine.models.open_model import open_model
from engine.weights.layout import Precision
from engine.weights.packing import Format, PackedMatrix
from tests.engine.backends.native.nodes.machines import write_machine
from tests.engine.backends.native.support.attention_cases import Shape, angles, fill, make_pages, make_table, run
from tests.engine.backends.native.support.matrices import make_matrix
from tests.engine.backends.native.support.steps import make_step
from tests.model_folders import write_folder
from tests.patience import PATIENCE_S
from tests.thoroughness import IS_FULL

ROOT = Path(__file__).parents[4]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder of libraries, and a machine that has AVX2."""
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.delenv(library.VARIANT_VARIABLE, raising=False)
    monkeypatch.setattr(library, "cpu_flags", lambda: {"avx2", "fma", "f16c"})
    library.load.cache_clear()
    yield tmp_path
    library.load.cache_clear()


def build(folder: Path, *variants: str) -> None:
    for name in variants:
        (folder / f"libeagre_{name}.so").write_bytes(b"no library")


def test_nothing_built(folder):
    with pytest.raises(NativeUnavailable, match=r"were not built: install a C\+\+17 compiler"):
        library.load()


def test_the_best_that_runs_here_is_chosen(folder):
    build(folder, "avx512_bf16", "plain", "avx2")
    assert list(library.built_variants()) == ["avx512_bf16", "avx2", "plain"]
    with pytest.raises(NativeUnavailable, match=r"could not be loaded: .*libeagre_avx2\.so"):
        library.load()


@pytest.mark.parametrize(
    ("flags", "choices"),
    [
        ({"avx2", "fma", "f16c"}, ["avx2"]),
        ({"avx2", "fma", "f16c", "avx_vnni"}, ["avx_vnni", "avx2"]),  # Intel's client processors
        (
            variants_of("x86_64")["avx512_bf16"].needs | {"avx2", "fma", "f16c", "avx_vnni"},  # Zen 5
            ["avx512_bf16", "avx512_vnni", "avx_vnni", "avx2"],
        ),
    ],
)
def test_what_a_processor_may_be_given(flags, choices):
    assert variants.choices(flags, "x86_64") == choices


def test_nothing_built_runs_here(folder):
    build(folder, "avx512_vnni", "neon")
    with pytest.raises(
        NativeUnavailable, match="of the native kernels built, avx512_vnni, neon, this processor runs none"
    ):
        library.load()


class Library(SimpleNamespace):
    """A shared library built from some sources, with some kernels, that this system refuses or not."""

    def __init__(
        self,
        sources: str,
        refusal: bytes | None = None,
        num_nodes: int = 1,
        interleave_error: int = 0,
        **kernels: object,
    ) -> None:
        def tell() -> bytes:
            return sources.encode()

        def prepare() -> bytes | None:
            return refusal

        super().__init__(
            eagre_sources=tell, eagre_prepare=prepare, eagre_pack=SimpleNamespace(),
            eagre_num_nodes=lambda: num_nodes, eagre_interleave_error=lambda: interleave_error, **kernels,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (Library(digest(), eagre_other=None), "another version; build them again: .*eagre_argmax"),
        (Library("0123456789abcdef", eagre_argmax=None), "another version than their sources; build them again"),
        (SimpleNamespace(eagre_argmax=None), "another version; build them again: .*eagre_sources"),
    ],
)
def test_a_library_of_another_version(folder, monkeypatch, built, message):
    monkeypatch.setattr(library, "TARGETS", ("argmax",))
    monkeypatch.setattr(ctypes, "CDLL", lambda path: built)
    monkeypatch.setattr(jax.ffi, "pycapsule", lambda function: function)
    build(folder, "avx2")
    with pytest.raises(NativeUnavailable, match=message):
        library.load()


def test_a_library_for_another_jaxlib(folder, monkeypatch):
    def refuse(*arguments, **options):
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: another version of the interface")

    monkeypatch.setattr(library, "TARGETS", ("argmax",))
    monkeypatch.setattr(ctypes, "CDLL", lambda path: Library(digest(), eagre_argmax=None))
    monkeypatch.setattr(jax.ffi, "pycapsule", lambda function: function)
    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    build(folder, "avx2")
    with pytest.raises(NativeUnavailable, match=r"built for another jaxlib; build them again: .*another version"):
        library.load()


@pytest.fixture
def refusing(folder, monkeypatch):
    """A processor that has everything, and a system that refuses AMX."""

    def open_library(path: str) -> Library:
        refusal = b"Operation not supported" if path.endswith("_amx.so") else None
        return Library(digest(), refusal, eagre_argmax=None)

    monkeypatch.setattr(
        library, "cpu_flags", lambda: set().union(*(variant.needs for variant in library.VARIANTS.values()))
    )
    monkeypatch.setattr(library, "TARGETS", ("argmax",))
    monkeypatch.setattr(ctypes, "CDLL", open_library)
    monkeypatch.setattr(jax.ffi, "pycapsule", lambda function: function)
    monkeypatch.setattr(jax.ffi, "register_ffi_target", lambda *arguments, **options: None)
    monkeypatch.setattr(library, "_libraries", {})
    return folder


def test_where_the_system_refuses_amx_the_log_says_so(refusing, caplog):
    build(refusing, "amx", "avx512_bf16", "plain")
    assert library.load() == "avx512_bf16"
    [record] = caplog.records
    assert record.getMessage() == (
        "this system refuses the native kernels for amx: Operation not supported; those for avx512_bf16 are taken"
    )


@pytest.mark.parametrize("wanted", ["amx", None])
def test_where_the_system_refuses_all_that_was_asked_for(refusing, monkeypatch, wanted):
    build(refusing, "amx", EMULATION)
    if wanted is not None:
        monkeypatch.setenv(library.VARIANT_VARIABLE, wanted)
    with pytest.raises(NativeUnavailable, match="refuses the native kernels for amx: Operation not supported"):
        library.load()


@pytest.mark.parametrize(
    ("num_nodes", "error", "expected"),
    [
        (1, 0, []),
        (2, 0, ["the kernels' threads are on 2 memory nodes"]),
        (
            2,
            errno.EPERM,
            ["the kernels' threads are on 2 memory nodes", "over the memory nodes (Operation not permitted)"],
        ),
    ],
)
def test_the_log_tells_of_memory_nodes(folder, monkeypatch, caplog, num_nodes, error, expected):
    built = Library(digest(), num_nodes=num_nodes, interleave_error=error)
    monkeypatch.setattr(library, "TARGETS", ())
    monkeypatch.setattr(library, "_libraries", {})
    monkeypatch.setattr(ctypes, "CDLL", lambda path: built)
    build(folder, "avx2")
    with caplog.at_level("INFO"):
        library.load()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(expected)
    assert all(part in line for part, line in zip(expected, said, strict=True))


def test_the_emulation_is_loaded_by_its_name_only(refusing, monkeypatch):
    build(refusing, EMULATION)
    with pytest.raises(NativeUnavailable, match="built, amx_emulated, this processor runs none with vector"):
        library.load()
    monkeypatch.setenv(library.VARIANT_VARIABLE, EMULATION)
    assert library.load() == EMULATION


def test_kernels_are_for_cpus(folder, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(NativeUnavailable, match="native kernels are for CPUs; the device is a gpu"):
        library.load()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("none", "EAGRE_NATIVE_VARIANT is none"),
        ("sse9", "EAGRE_NATIVE_VARIANT is 'sse9', which was not built; there are avx512_bf16, plain"),
        ("avx512_bf16", "'avx512_bf16', which this processor does not run; there are avx512_bf16, plain"),
        ("plain", r"could not be loaded: .*libeagre_plain\.so"),
    ],
)
def test_one_asked_for(folder, monkeypatch, wanted, message):
    build(folder, "avx512_bf16", "plain")
    monkeypatch.setenv(library.VARIANT_VARIABLE, wanted)
    with pytest.raises(NativeUnavailable, match=message):
        library.load()


def results_digest() -> str:
    """Of a product, experts and an attention of several tasks each, and of weights that are packed."""
    random = np.random.default_rng(0)
    matrix = make_matrix(random, Format.INT8, 1, 400, 256)
    x = random.standard_normal((200, 256)).astype(np.float32)  # three parts for five threads, two for two
    norm, nothing = np.ones((1, 256), np.float32), np.zeros(0, np.float32)
    product = norm_product(
        x, make_step([0] * 200).rows, np.int32(0), norm, nothing, matrix.packed, nothing,
        norm_kind=NormKind.RMS, epsilon=1e-5, activation=Activation.NONE, is_gated=False, num_tiles=0,
    )  # fmt: skip
    shape = Shape("bfloat16")
    step = make_step([1400, 30, *range(600, 624)], [(700, 24)], 24)
    table, num_pages = make_table(random, step, shape.page_size)
    table[2:26, : 600 // shape.page_size] = table[2, : 600 // shape.page_size]
    kv = fill(random, make_pages(random, shape, num_pages), 0, step, table)
    qkv = random.standard_normal((step.num_tokens, shape.num_vectors * shape.head_dim)).astype(np.float32)
    out, _ = run(shape, qkv, angles(random, step.num_tokens, shape), step, table, 0, kv)
    gate_up = make_matrix(random, Format.INT8, 4, 2 * 96, 64, is_gated=True)
    down = make_matrix(random, Format.INT8, 4, 64, 96)
    picked = np.stack([random.permutation(4)[:2] for _ in range(step.num_tokens)]).astype(np.int32)
    mixed = add_experts(
        np.zeros((step.num_tokens, 64), np.float32), random.standard_normal((step.num_tokens, 64)).astype(np.float32),
        gate_up.packed, down.packed, Picks(picked, random.uniform(0.1, 1, picked.shape).astype(np.float32), 4),
        np.int32(0), token_layout(step.rows, table, num_tiles=1, tile_size=24, page_size=shape.page_size),
        activation=Activation.SILU,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder))
        opened = open_model(Path(folder)).load(PackedLayout(), Precision("auto", None), lambda *step: None)
    packed = [leaf.blocks for leaf in opened.params.values() if isinstance(leaf, PackedMatrix)]
    assert len(packed) > 3
    made = product, out, mixed, *packed
    return hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in made)).hexdigest()


def test_the_number_of_threads_and_memory_nodes_changes_nothing(variant, tmp_path):
    if not IS_FULL and variant != next(filter(library.runs_here, library.built_variants())):
        pytest.skip("the division of the work among threads is the same in every variant; EAGRE_FULL=1 runs them all")
    program = (
        "from tests.engine.backends.native.test_library import library, results_digest\n"
        "print(results_digest(), library.num_nodes())"
    )
    first, *others = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    machine = write_machine(tmp_path / "system", {0: f"{first}", 1: ",".join(map(str, others))})
    with_five = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ
        | {"EAGRE_THREADS": "5", "EAGRE_TOPOLOGY_FOLDER": str(machine), library.VARIANT_VARIABLE: variant},
        capture_output=True,
        text=True,
        check=True,
        timeout=3 * PATIENCE_S,  # a Python that imports JAX and computes with more threads than there are cores
    )
    digest, num_nodes = with_five.stdout.split()
    assert digest == results_digest()
    assert num_nodes == ("2" if others else "1")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_library_that_is_cut_short_is_refused(tmp_path, monkeypatch, share):
    """Loaded, it would end the process with a bus error."""
    (name, whole), *_ = library.built_variants().items()
    content = whole.read_bytes()
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(library.VARIANT_VARIABLE, name)
    monkeypatch.setattr(library, "runs_here", lambda variant: True)
    (tmp_path / whole.name).write_bytes(content[: int(len(content) * share)])
    library.load.cache_clear()
    try:
        with pytest.raises(NativeUnavailable, match=r"cut short; build them again|could not be loaded"):
            library.load()
    finally:
        library.load.cache_clear()


def test_a_whole_library_is_not_cut_short():
    assert [path.name for path in library.built_variants().values() if library.is_cut_short(path)] == []


def test_pages_are_of_what_products_are_fastest_with(variant):
    integers = {"avx2", "avx_vnni", "avx512_vnni"}
    of_makers = {"avx512_bf16"}  # whose processors multiply pairs of bfloat16 at different rates
    allowed = {"int16"} if variant in integers else {"bfloat16"} | ({"int16"} if variant in of_makers else set())
    assert library.page_type() in allowed
