"""Programs are compiled ahead of time, and late compiles are counted."""

import threading

import jax
import jax.numpy as jnp
import pytest

from engine.backends.backends import BACKENDS
from engine.step.compiled import CompileCounter, CompiledPrograms


def test_programs_are_found_by_key_and_progress_counts_them():
    told = []
    programs = CompiledPrograms()
    double = jax.jit(lambda x: x * 2)
    lowerings = {n: (lambda n=n: double.lower(jax.ShapeDtypeStruct((n,), jnp.float32))) for n in (1, 2, 3)}
    programs.compile(lowerings, lambda *step: told.append(step))
    assert programs[2](jnp.ones(2)).tolist() == [2, 2]
    assert told == [("compile", done, 3) for done in range(4)]
    with pytest.raises(KeyError):
        programs[4]


def test_a_failing_compile_is_reported():
    def broken():
        raise ValueError("no such shape")

    with pytest.raises(ValueError, match="no such shape"):
        CompiledPrograms().compile({"a": broken}, lambda *step: None)


def test_only_compiles_after_the_start_are_counted():
    counter = CompileCounter()
    jax.jit(lambda x: x + 11)(jnp.ones(17))
    assert counter.count == 0
    counter.start(threading.current_thread())
    late = jax.jit(lambda x: x + 12)
    argument = jnp.ones(17)
    before = counter.count
    late(argument)
    assert counter.count == before + 1
    late(argument)
    assert counter.count == before + 1
    counter.stop()
    jax.jit(lambda x: x + 13)(argument)
    assert counter.count == before + 1


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_an_engine_that_wakes_compiles_nothing_even_where_jax_has_forgotten_everything(backend):
    backend.load()
    shapes = [jax.ShapeDtypeStruct((2, 3), "float32"), {"other": jax.ShapeDtypeStruct((4,), "int8")}]
    backend.empty(shapes)
    counter = CompileCounter()
    counter.start(threading.current_thread())
    try:
        jax.clear_caches()
        array, others = backend.empty(shapes)
        assert (array.shape, array.dtype, others["other"].shape) == ((2, 3), "float32", (4,))
        assert counter.count == 0
    finally:
        counter.stop()
