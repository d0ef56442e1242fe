"""Bursts of the native backend: a call between two steps leaves the tokens where the host waits for them."""

from __future__ import annotations

import ctypes
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from engine.backends.native.library import library_with_lock, load, shared_library, target


class NativeBurst:
    """See `Burst`."""

    __slots__ = ("_calls", "_number", "_tokens", "_tokens_address", "name")

    def __init__(self, calls: _Calls, number: int, num_rows: int) -> None:
        self._calls, self._number = calls, number
        self.name = np.array([number], np.int32)
        self._tokens = np.empty(num_rows, np.int32)
        self._tokens_address = self._tokens.ctypes.data

    def __del__(self) -> None:
        self._calls.close(self._number)

    def wait(self, step: int, seconds: float) -> np.ndarray | None:
        """As `Burst.wait`; the next call overwrites what it returns."""
        is_told = self._calls.wait(self._number, step, int(1e6 * seconds), self._tokens_address)
        return self._tokens if is_told else None

    def is_told(self, step: int) -> bool:
        num_told: int = self._calls.num_told(self._number)
        return num_told > step

    def cut(self) -> int:
        num_begun: int = self._calls.cut(self._number)
        return num_begun


class NativeBursts:
    """See `Bursts`."""

    def tell(self, tokens: jax.Array, name: jax.Array) -> jax.Array:
        # The loop needs what it returns, so that XLA must call it. As a side effect JAX would wait for it at exit.
        goes_on: jax.Array = jax.ffi.ffi_call(target("tell_step"), jax.ShapeDtypeStruct((1,), jnp.int32))(tokens, name)
        return goes_on[0] > 0

    def open(self, num_rows: int, num_steps: int) -> NativeBurst:
        calls = _calls(load())
        number = calls.open(num_rows, num_steps)
        if number < 0:
            raise MemoryError(f"no memory for {num_steps} steps of {num_rows} rows")
        return NativeBurst(calls, number, num_rows)


class _Calls:
    """The plain functions of ffi/sampling_targets.cc. Only the one that waits gives the interpreter's lock away."""

    def __init__(self) -> None:
        quick, slow = library_with_lock(), shared_library()
        int32 = ctypes.c_int32
        self.open = quick.eagre_open_burst
        self.open.argtypes = (ctypes.c_int64, int32)
        self.num_told = quick.eagre_num_told_steps
        self.cut = quick.eagre_cut_burst
        self.close = quick.eagre_close_burst
        self.close.restype = None
        for call in (self.num_told, self.cut, self.close):
            call.argtypes = (int32,)
        self.wait = slow.eagre_wait_for_step
        self.wait.argtypes = (int32, int32, ctypes.c_int64, ctypes.c_void_p)


@cache
def _calls(variant: str) -> _Calls:
    """Those of the variant that is loaded: each has bursts of its own."""
    return _Calls()
