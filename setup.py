"""Builds the native kernels beside the Python packages; everything else is in pyproject.toml.

Without a C++17 compiler, or without the headers that jaxlib brings, one line says so and the
Python part is installed alone: the server then computes with XLA.

    python setup.py build_native --inplace    # into engine/backends/native, as `make native` does
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.command.build_py import build_py

if TYPE_CHECKING:
    from engine.backends.native.variants import Variant

PACKAGE = Path("engine", "backends", "native")
SOURCES = PACKAGE / "src"
PAGE_PACKAGES = Path("static", "packages")
TILE_REGISTERS = Path("isa", "tile_registers.h")
TELLS_SOURCES = Path("ffi", "library.cc")  # a library is loaded only beside the sources that it was built from
MACHINE_VARIABLE = "EAGRE_BUILD_MACHINE"  # builds for another machine, such as aarch64, for which CXX then compiles

# Contraction is off because a row's result must not depend on which loop the compiler fused.
FLAGS = "-std=c++17 -fPIC -pthread -ffp-contract=off"
OPTIMISE = "-O3"
# What most sources include takes a third of their compile time, most of it the intrinsics; a compiler reads it once.
PRECOMPILED = """
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>
"""
LEAST_PRECOMPILED = 4  # sources by the same flags, below which it does not pay
SANITIZE = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"


class CannotBuild(Exception):
    """The native kernels cannot be built; the message says why."""


class Unit(NamedTuple):
    """The compilation of one source to one object."""

    command: list[str]
    source: Path
    to: Path
    digest: str  # of the sources and the command
    flags: tuple[str, ...]  # of the variant

    def is_made(self) -> bool:
        """Whether the object is there, made from the same files by the same command."""
        made_of = self.to.with_suffix(".made_of")
        return self.to.exists() and made_of.exists() and made_of.read_text() == self.digest

    def make(self, precompiled: Future[list[str]] | None) -> Path:
        """Compiles the source, with the precompiled header if that is ready by now: it does not change the object."""
        made_of = self.to.with_suffix(".made_of")
        made_of.unlink(missing_ok=True)
        include = precompiled.result() if precompiled is not None and precompiled.done() else []
        _run([*self.command, *include, "-c", str(self.source), "-o", str(self.to)], self.to)
        made_of.write_text(self.digest)
        return self.to


class BuildNative(Command):
    """Compiles the kernels once for each instruction set, into one shared library each."""

    description = "compile the native kernels"
    user_options = [  # noqa: RUF012  (setuptools reads it from the class)
        ("inplace", "i", "put the libraries beside their sources"),
        ("folder=", None, "put the libraries there, and the objects too"),
        ("variant=", None, "build this one only"),
        ("sanitize", None, "with the address and undefined behaviour sanitizers"),
        ("force", "f", "compile what is up to date, too"),
    ]
    boolean_options = ["inplace", "sanitize", "force"]  # noqa: RUF012

    def initialize_options(self) -> None:
        self.inplace = self.sanitize = self.force = False
        self.editable_mode = False  # set by setuptools for an editable install
        self.folder: str | None = None
        self.variant: str | None = None
        self.build_lib: str | None = None
        self.build_temp: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"), ("build_temp", "build_temp"))

    def run(self) -> None:
        try:
            self._build(_compiler(), _headers())
        except CannotBuild as reason:
            self.announce(f"native kernels are not built: {reason}", logging.WARNING)

    # setuptools asks every step of a build for these three.

    def get_source_files(self) -> list[str]:
        return [str(path) for path in sorted(SOURCES.glob("*/*.*"))]

    def get_outputs(self) -> list[str]:
        return list(self.get_output_mapping()) if self.editable_mode else [str(path) for path in self._libraries()]

    def get_output_mapping(self) -> dict[str, str]:
        assert self.build_lib is not None
        return {str(Path(self.build_lib, path)): str(path) for path in self._libraries()} if self.editable_mode else {}

    def _variants(self) -> dict[str, Variant]:
        """What is to be built: by its name, everything, all that may be chosen anywhere, or what is chosen here."""
        machine = _machine()
        variants = NATIVE.variants_of(machine)
        if self.variant is not None:
            if self.variant not in variants:
                raise CannotBuild(f"{self.variant!r} is none of {', '.join(variants)}")
            return {self.variant: variants[self.variant]}
        if os.environ.get("EAGRE_FULL") == "1":
            return variants
        wanted = [name for name, variant in variants.items() if not variant.is_for_tests]
        if self.inplace or self.editable_mode:
            best = NATIVE.choices(NATIVE.cpu_flags(), machine)[:1]
            # A system may refuse to let a process use AMX; its base variant is then the best, and shares most objects.
            wanted = [name for chosen in best for name in (chosen, variants[chosen].base) if name is not None]
        return {name: variants[name] for name in wanted}

    def _library(self, variant: str) -> Path:
        assert self.build_lib is not None
        own = PACKAGE if self.inplace or self.editable_mode else Path(self.build_lib, PACKAGE)
        return (Path(self.folder) if self.folder else own) / f"libeagre_{variant}.so"

    def _libraries(self) -> list[Path]:
        return [path for variant in self._variants() if (path := self._library(variant)).exists()]

    def _build(self, compiler: list[str], headers: Path) -> None:
        variants = self._variants()
        if not variants:
            raise CannotBuild("this processor has none of the instruction sets that they are written for")
        inputs = [Path(__file__), PACKAGE / "variants.py", *SOURCES.glob("*/*.*"), *headers.rglob("*.h")]
        newest = max(path.stat().st_mtime for path in inputs)

        def is_outdated(library: Path) -> bool:
            return not library.exists() or library.stat().st_mtime <= newest

        stale = {name: variant for name, variant in variants.items() if self.force or is_outdated(self._library(name))}
        if self.inplace and self.variant is None:  # what an earlier build made on demand, of older sources
            outdated = {path for path in Path(self.folder or PACKAGE).glob("libeagre_*.so") if is_outdated(path)}
            for path in outdated - {self._library(name) for name in variants}:
                path.unlink(missing_ok=True)  # another build may have removed it
        if not stale:
            return
        self.announce(f"compiling native kernels: {', '.join(stale)} ...", logging.WARNING)
        common = [*compiler, *FLAGS.split(), f"-I{SOURCES}", *(SANITIZE if self.sanitize else OPTIMISE).split()]
        included = {source: _with_includes(source) for source in sorted(SOURCES.glob("*/*.cc"), key=_order)}
        of_tiles = {source for source, files in included.items() if SOURCES / TILE_REGISTERS in files}
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(_num_cores()) as pool:
            units: dict[tuple[str, Path], Unit] = {}

            def unit_of(name: str, variant: Variant, source: Path) -> Unit:
                flags = f"{variant.flags} {variant.tile_flags if source in of_tiles else ''}".split()
                owner = variant.base if variant.base is not None and source not in of_tiles else name
                if (owner, source) not in units:
                    command = [*common, *flags, "-isystem", str(headers)]
                    if source.relative_to(SOURCES) == TELLS_SOURCES:
                        command.append(f'-DEAGRE_SOURCES="{_digest_of_sources()}"')
                    units[owner, source] = self._unit(command, source, owner, included[source], flags)
                return units[owner, source]

            of_libraries = {name: [unit_of(name, stale[name], source) for source in included] for name in stale}
            outdated = [unit for unit in units.values() if self.force or not unit.is_made()]
            precompiled = {
                flags: pool.submit(_precompile, [*common, *flags], Path(folder, str(i)))
                for i, (flags, count) in enumerate(Counter(unit.flags for unit in outdated).items())
                if count >= LEAST_PRECOMPILED
            }
            made = {unit.to: pool.submit(unit.make, precompiled.get(unit.flags)) for unit in outdated}
            objects = {
                name: [made[unit.to] if unit.to in made else _done(unit.to) for unit in of_library]
                for name, of_library in of_libraries.items()
            }
            failures = {}
            for name, futures in objects.items():
                library = self._library(name)
                try:
                    self._link(common, [future.result() for future in futures], library)
                except CannotBuild as reason:
                    library.unlink(missing_ok=True)  # an older library does not belong to these sources
                    failures[name] = str(reason)
        if len(failures) == len(variants):
            raise CannotBuild(next(iter(failures.values())))
        for name, failure in failures.items():
            self.announce(f"native kernels for {name} are not built: {failure}", logging.WARNING)

    def _unit(self, command: list[str], source: Path, owner: str, included: set[Path], flags: list[str]) -> Unit:
        """The compilation of a source, with the digest of all that its object depends on."""
        assert self.build_temp is not None
        to = Path(self.folder or self.build_temp, "native", owner, source.relative_to(SOURCES).with_suffix(".o"))
        seen = hashlib.sha256(repr([command, metadata.version("jaxlib")]).encode())
        for path in sorted(included):
            seen.update(path.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
        return Unit(command, source, to, seen.hexdigest(), tuple(flags))

    def _link(self, command: list[str], objects: list[Path], library: Path) -> None:
        # Made beside its place and moved there, for the old one may be in use by a server.
        to = library.with_suffix(".new")
        command = [*command, "-shared", *map(str, objects), "-o", str(to)]
        if self.inplace or self.editable_mode or not sys.platform.startswith("linux"):
            _run(command, to)
        else:
            try:  # a wheel also runs where the C++ library is older than this compiler's
                _run([*command, "-static-libstdc++", "-static-libgcc"], to)
            except CannotBuild:  # some systems have no static one
                _run(command, to)
        to.replace(library)


class BuildPython(build_py):
    """Adds the packages that the page loads, fetched from npm, and the types of the module `eagre`.

    The types are a stub package of their own (PEP 561): py.typed is for packages only.
    """

    def run(self) -> None:
        page = _load("fetch", PAGE_PACKAGES)
        for failure in page.fetch_all():
            self.announce(failure, logging.WARNING)
        super().run()
        if not self.editable_mode:
            for folder in PAGE_PACKAGES.glob("*@*"):
                shutil.copytree(folder, Path(self.build_lib, folder), dirs_exist_ok=True)
            stubs = Path(self.build_lib, "eagre-stubs")
            stubs.mkdir(parents=True, exist_ok=True)
            shutil.copyfile("eagre.py", stubs / "__init__.pyi")


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and for every Python 3, because the libraries do not depend on Python's version."""

    def get_tag(self) -> tuple[str, str, str]:
        machine = os.environ.get(MACHINE_VARIABLE)
        return "py3", "none", super().get_tag()[2] if machine is None else f"linux_{machine}"


class PlatformDistribution(Distribution):
    """A distribution whose files belong to one platform, although it has no extension modules."""

    def has_ext_modules(self) -> bool:
        return True


def _compiler() -> list[str]:
    wanted = shlex.split(os.environ.get("CXX", ""))
    for command in [wanted] if wanted else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    if wanted:
        raise CannotBuild(f"CXX is {wanted[0]!r}, and there is no such command")
    raise CannotBuild("there is no C++17 compiler; install g++ or clang++ (or name one as CXX) and install Eagre again")


def _headers() -> Path:
    """The folder of the C header of XLA's FFI; jaxlib is looked up, not imported, which takes a second."""
    spec = importlib.util.find_spec("jaxlib")
    folders = (spec.submodule_search_locations if spec is not None else None) or []
    for folder in folders:
        if Path(folder, "include", "xla", "ffi", "api", "c_api.h").exists():
            return Path(folder, "include")
    raise CannotBuild(f"{sys.executable} has no jaxlib with XLA's FFI headers")


def _precompile(command: list[str], folder: Path) -> list[str]:
    """Precompiles the header of PRECOMPILED; returns the flags that include it, none where the compiler cannot."""
    header = folder / "precompiled.h"
    folder.mkdir()
    header.write_text(PRECOMPILED, encoding="utf-8")
    try:
        _run([*command, "-x", "c++-header", str(header), "-o", f"{header}.gch"], header)
    except CannotBuild:
        return []
    return ["-include", str(header)]


def _done(path: Path) -> Future[Path]:
    future = Future[Path]()
    future.set_result(path)
    return future


def _with_includes(path: Path) -> set[Path]:
    """A source and the files of SOURCES that it includes, directly or through others."""
    found, left = set[Path](), [path]
    while left:
        found.add(path := left.pop())
        names = re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
        left += {file for name in names if (file := SOURCES / name).exists()} - found
    return found


def _load(name: str, folder: Path = PACKAGE) -> Any:
    """A module that needs nothing but Python, loaded alone: the kernels' package needs JAX."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a NamedTuple looks its module up
    spec.loader.exec_module(module)
    return module


def _order(source: Path) -> tuple[int, Path]:
    """Sorts sources so that those which take longest are compiled first, and no core waits for another at the end."""
    slow = ("tiles", "attention")
    return slow.index(source.parent.name) if source.parent.name in slow else len(slow), source


def _digest_of_sources() -> str:
    digest: str = _load("sources").digest()
    return digest


def _machine() -> str:
    return os.environ.get(MACHINE_VARIABLE) or platform.machine()


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run(command: list[str], output: Path) -> None:
    """Runs a compiler that makes the file `output`; raises CannotBuild with the first error it printed."""
    output.parent.mkdir(parents=True, exist_ok=True)
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = [line.strip() for line in result.stderr.splitlines()]
        errors = [line for line in lines if "error" in line.lower()]
        raise CannotBuild(f"{command[0]} failed: {next(iter(errors or lines), f'exit status {result.returncode}')}")


NATIVE = _load("variants")

build.sub_commands = [*build.sub_commands, ("build_native", None)]

setup(
    cmdclass={"build_native": BuildNative, "build_py": BuildPython, "bdist_wheel": PlatformWheel},
    distclass=PlatformDistribution,
)
