"""The instruction sets that the kernels are compiled for. Needs nothing but Python: setup.py loads this file alone."""

import platform
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple


class Variant(NamedTuple):
    """One compilation of the kernels."""

    needs: frozenset[str]  # what the processor must have, by Linux's names in /proc/cpuinfo
    flags: str  # of the compiler
    base: str | None = None  # shares the objects of this variant, except those of sources that use tile registers
    tile_flags: str = ""  # added to the flags for those sources
    is_for_tests: bool = False  # loaded and built only by its name, or with EAGRE_FULL=1


EMULATION = "amx_emulated"  # AMX's tile instructions in plain C++, which runs on every processor

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"})
_BF16 = _AVX512 | {"avx512_bf16"}
_AMX = frozenset({"amx_tile", "amx_int8", "amx_bf16"})
_AVX2_FLAGS = "-mavx2 -mfma -mf16c"
_AVX512_FLAGS = f"{_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni"
_BF16_FLAGS = f"{_AVX512_FLAGS} -mavx512bf16"
_NOTHING: frozenset[str] = frozenset()
_EMULATED = Variant(_NOTHING, "", "plain", "-DEAGRE_EMULATES_TILE_REGISTERS", is_for_tests=True)

# By machine and name, in order of preference. "plain" uses only what every processor of the machine has: on x86-64 XLA
# is faster than that; on ARM it is NEON without dot products.
MACHINES = {
    "x86_64": {
        "amx": Variant(
            _AVX512 | _AMX | {"avx512_bf16"}, _BF16_FLAGS, "avx512_bf16", "-mamx-tile -mamx-int8 -mamx-bf16"
        ),
        "avx512_bf16": Variant(_AVX512 | {"avx512_bf16"}, _BF16_FLAGS),
        "avx512_vnni": Variant(_AVX512, _AVX512_FLAGS),
        "avx_vnni": Variant(_AVX2 | {"avx_vnni"}, f"{_AVX2_FLAGS} -mavxvnni"),
        "avx2": Variant(_AVX2, _AVX2_FLAGS),
        "plain": Variant(_NOTHING, "-O1", is_for_tests=True),
        EMULATION: _EMULATED,
    },
    "aarch64": {
        "neon": Variant(frozenset({"asimddp"}), "-march=armv8.2-a+dotprod"),
        "plain": Variant(_NOTHING, ""),
        EMULATION: _EMULATED,
    },
}
_OTHER_MACHINE = {"plain": Variant(_NOTHING, "")}
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}


def variants_of(machine: str) -> dict[str, Variant]:
    """All variants for a machine by its name in `platform.machine()`, best first."""
    machine = machine.lower()
    return dict(MACHINES.get(_ALIASES.get(machine, machine), _OTHER_MACHINE))


def choices(flags: Collection[str], machine: str) -> list[str]:
    """The variants that a processor with these flags may be given, best first."""
    return [
        name
        for name, variant in variants_of(machine).items()
        if not variant.is_for_tests and variant.needs <= set(flags)
    ]


def cpu_flags() -> set[str]:
    """This processor's instruction set extensions, by Linux's names."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return {"asimddp"} if platform.machine() == "arm64" else set()
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.split(":", 1)[1].split())
    return set()
