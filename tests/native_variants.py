"""The variants of the native kernels, each of which tests run with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import pytest

from engine.backends.native import library
from engine.backends.native.sampler import NATIVE
from engine.backends.native.variants import EMULATION
from sampling.sampler import SamplerBackend
from tests.thoroughness import IS_FULL

# Variants that differ from another one in products and attention alone.
_OF_TILE_REGISTERS = {"amx", EMULATION}


def variants_to_test(*, with_tile_registers: bool = True) -> list[object]:
    """Parameters of a fixture: what was built and runs on this machine; the emulation where what it emulates does not.

    Args:
        with_tile_registers: the variants too that differ from others in their use of tile registers alone.
    """
    chosen = os.environ.get(library.VARIANT_VARIABLE)
    variants = [name for name in library.built_variants() if library.runs_here(name) and chosen in (None, name)]
    if not with_tile_registers:
        variants = [name for name in variants if name not in _OF_TILE_REGISTERS]
        if "avx512_bf16" in variants and not IS_FULL and chosen is None:
            variants = [name for name in variants if name != "avx512_vnni"]  # the same code but for bfloat16 products
    elif "amx" in variants:
        variants = [name for name in variants if name != EMULATION]
    # With a compiler at hand, kernels that are not there are a defect of the build, and the tests fail.
    could_build = any(map(shutil.which, ("c++", "g++", "clang++")))
    missing = pytest.mark.skip("there is no compiler, and so there are no native kernels to test")
    return variants or [pytest.param("none", marks=() if could_build and chosen is None else missing)]


@contextmanager
def loaded(variant: str) -> Iterator[None]:
    """Within it the kernels are of this variant, and behind it again what they would be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.VARIANT_VARIABLE, variant)
        library.load.cache_clear()
        try:
            try:
                assert library.load() == variant
            except library.NativeRefused as refusal:
                pytest.skip(str(refusal))
            yield
        finally:
            library.load.cache_clear()


@cache
def native_body(variant: str) -> SamplerBackend:
    """The native sampler with functions of this variant's own: JAX keeps what it has compiled by function."""
    return SamplerBackend(*map(partial, NATIVE))
