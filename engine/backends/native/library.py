"""The shared library of the kernels: one for each instruction set, of which the best for this machine is loaded."""

import ctypes
import logging
import os
import platform
import struct
from functools import cache
from itertools import pairwise
from pathlib import Path

import jax

from engine.backends.base.backend import BackendUnavailable
from engine.backends.native.sources import SOURCES, digest
from engine.backends.native.variants import MACHINES, cpu_flags, variants_of

# In order of preference; a folder may also hold libraries for other machines, which are never loaded.
VARIANTS = variants_of(platform.machine())
VARIANTS |= {name: variant for other in MACHINES.values() for name, variant in other.items() if name not in VARIANTS}
TARGETS = (
    "norm_product", "add_product", "add_experts", "head_product", "embed", "attention", "argmax", "empty",
    "sample_random", "sample_full", "logprobs", "gated_delta", "convolution", "state_space",
    "norm", "tell_step",
)  # fmt: skip

# Of `eagre_pack` in src/ffi/packing_calls.cc; what it returns is an int.
_PACK_ARGUMENTS = (
    ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
    ctypes.c_void_p, ctypes.c_int64,
)  # fmt: skip

VARIANT_VARIABLE = "EAGRE_NATIVE_VARIANT"  # names a variant, or "none"
FOLDER_VARIABLE = "EAGRE_NATIVE_FOLDER"  # of the libraries, instead of this file's

_log = logging.getLogger(__name__)


class NativeUnavailable(BackendUnavailable):
    """The kernels cannot be used here; the message says why, and how to get them."""


class NativeRefused(NativeUnavailable):
    """The processor has the instructions, but the system does not let this process use them."""


_libraries: dict[str, ctypes.CDLL] = {}  # by variant, those whose targets are registered


@cache
def load() -> str:
    """Loads the library and registers its targets with XLA, once; returns the name of the variant.

    Raises NativeUnavailable: the device is no CPU, or nothing was built that runs here and fits these sources and this
    jaxlib.
    """
    if jax.default_backend() != "cpu":
        raise NativeUnavailable(f"native kernels are for CPUs; the device is a {jax.default_backend()}")
    wanted = os.environ.get(VARIANT_VARIABLE) or None
    candidates = _candidates(wanted)
    for (name, path), (following, _) in pairwise(candidates):
        try:
            _register(name, path)
        except NativeRefused as refusal:
            _log.warning("%s; those for %s are taken", refusal, following)
        else:
            return name
    _register(*candidates[-1])
    return candidates[-1][0]


def shared_library() -> ctypes.CDLL:
    """The library, for calls without XLA, which do not hold the interpreter's lock; raises as `load`."""
    return _libraries[load()]


def page_type() -> str:
    """The type of pages of 16 bits that attention is fastest with here, bfloat16 or int16; raises as `load`."""
    tell = shared_library().eagre_page_type
    tell.restype = ctypes.c_char_p
    return str(tell().decode())


def multiplies_bytes_faster() -> bool:
    """Whether products of many rows are faster with weights of 8 bits than of bfloat16; raises as `load`."""
    return bool(shared_library().eagre_multiplies_bytes_faster())


def num_nodes() -> int:
    """The number of memory nodes that the kernels' threads are of; raises as `load`."""
    return int(shared_library().eagre_num_nodes())


def library_with_lock() -> ctypes.PyDLL:
    """The library, for calls so short that they had better keep the interpreter's lock; raises as `load`."""
    return ctypes.PyDLL(shared_library()._name)


def target(name: str) -> str:
    """The name of a target in XLA; the variant is part of it, for results differ in the last bits. Raises as `load`."""
    return f"eagre_{load()}_{name}"


@cache
def _register(variant: str, path: Path) -> None:
    if is_cut_short(path):
        raise NativeUnavailable(f"the native kernels are damaged: {path.name} is cut short; build them again")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"the native kernels could not be loaded: {error}") from error
    try:
        _check_version(library)
        _prepare(variant, library)
        handlers = {name: jax.ffi.pycapsule(getattr(library, f"eagre_{name}")) for name in TARGETS}
        library.eagre_pack.argtypes = _PACK_ARGUMENTS
    except AttributeError as error:
        raise NativeUnavailable(f"the native kernels are of another version; build them again: {error}") from error
    try:
        for name, handler in handlers.items():
            jax.ffi.register_ffi_target(f"eagre_{variant}_{name}", handler, platform="cpu")
    except (RuntimeError, ValueError) as error:
        raise NativeUnavailable(
            f"the native kernels were built for another jaxlib; build them again: {error}"
        ) from error
    _libraries[variant] = library
    _tell_of_nodes(library)


def _check_version(library: ctypes.CDLL) -> None:
    """Raises NativeUnavailable for a library that was built from other sources, AttributeError for a very old one."""
    tell = library.eagre_sources
    tell.restype = ctypes.c_char_p
    if SOURCES.is_dir() and tell() != digest().encode():
        raise NativeUnavailable("the native kernels are of another version than their sources; build them again")


def _prepare(variant: str, library: ctypes.CDLL) -> None:
    """Requests what the system must allow before a kernel runs; raises NativeRefused where it does not."""
    prepare = library.eagre_prepare
    prepare.restype = ctypes.c_char_p
    refusal = prepare()
    if refusal is not None:
        raise NativeRefused(f"this system refuses the native kernels for {variant}: {refusal.decode()}")


def _tell_of_nodes(library: ctypes.CDLL) -> None:
    if (nodes := library.eagre_num_nodes()) > 1:
        _log.info("the kernels' threads are on %d memory nodes, and weights lie on the nodes of their threads", nodes)
    if error := library.eagre_interleave_error():
        _log.warning(
            "the system refuses to spread the memory of keys and values over the memory nodes (%s): the capability "
            "SYS_NICE or numactl --interleave=all would help",
            os.strerror(error),
        )


def is_cut_short(path: Path) -> bool:
    """Whether an ELF library (64 bits, little-endian) ends before the parts that its header announces.

    The loader maps such a file without a complaint, and the process then dies of a bus error. Layout: System V
    Application Binary Interface, "ELF header". Raises NativeUnavailable where the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            header = file.read(64)
            if header[:6] != b"\x7fELF\x02\x01":
                return False
            if len(header) < 64:
                return True
            programs, sections = struct.unpack_from("<QQ", header, 32)
            program_size, num_programs, section_size, num_sections = struct.unpack_from("<HHHH", header, 54)
            end = max(programs + program_size * num_programs, sections + section_size * num_sections)
            if end > size or program_size < 56:
                return True
            file.seek(programs)
            table = file.read(program_size * num_programs)
    except OSError as error:
        raise NativeUnavailable(f"the native kernels could not be read: {error}") from error
    starts = range(0, len(table), program_size)
    # In a program header, the offset in the file is at byte 8 and the size in the file at byte 32.
    return any(sum(struct.unpack_from("<Q", table, start + at)[0] for at in (8, 32)) > size for start in starts)


def built_variants() -> dict[str, Path]:
    """The variants that were built, best first, whether they run on this machine or not."""
    folder = Path(os.environ.get(FOLDER_VARIABLE) or Path(__file__).parent)
    return {name: path for name in VARIANTS if (path := folder / f"libeagre_{name}.so").exists()}


def runs_here(variant: str) -> bool:
    """Whether this machine has the instructions of a variant."""
    return VARIANTS[variant].needs <= cpu_flags()


def _candidates(wanted: str | None) -> list[tuple[str, Path]]:
    """The configured variant, or those that this processor runs, best first: at least one."""
    built = built_variants()
    if wanted == "none":
        raise NativeUnavailable(f"{VARIANT_VARIABLE} is none")
    if not built:
        raise NativeUnavailable("native kernels were not built: install a C++17 compiler (g++, clang++) and reinstall")
    there_are = f"there are {', '.join(built)}"
    if wanted is not None:
        if wanted not in built:
            raise NativeUnavailable(f"{VARIANT_VARIABLE} is {wanted!r}, which was not built; {there_are}")
        if not runs_here(wanted):
            raise NativeUnavailable(f"{VARIANT_VARIABLE} is {wanted!r}, which this processor does not run; {there_are}")
        return [(wanted, built[wanted])]
    found = [(name, path) for name, path in built.items() if not VARIANTS[name].is_for_tests and runs_here(name)]
    if not found:
        raise NativeUnavailable(
            f"of the native kernels built, {', '.join(built)}, this processor runs none with vector instructions"
        )
    return found
