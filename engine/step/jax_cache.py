"""JAX's persistent compilation cache, in a folder of ours and for a while."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import jax
from jax.experimental.compilation_cache import compilation_cache

ENTRY_SUFFIX = "-cache"  # JAX's name of an entry is the program's name, "-", a digest and this

# JAX tells of an entry that it could not use by this warning alone, and compiles the program.
_FAILED = re.compile(r"Error (reading|writing) persistent compilation cache entry for '([^']*)': (.*)", re.DOTALL)


class JaxCache:
    """A folder in which JAX looks for programs and leaves those that it compiles."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: set[str] = set()  # names of the entries that were there before, less those that proved unusable
        self._unwritten: set[str] = set()  # names of programs of which an entry was not written, or not whole
        self.num_unusable = 0  # entries that JAX found and could not read
        self.write_error: str | None = None  # why an entry was not written

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """JAX uses the folder while the context lasts, and no program is too small for it.

        JAX's settings are those of the whole process, and so are Python's filters of warnings.
        """
        settings: dict[str, object] = {
            "jax_compilation_cache_dir": str(self._folder),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
            # JAX would have XLA write caches of its own into the folder, on GPUs.
            "jax_persistent_cache_enable_xla_caches": "none",
        }
        self._found = {path.name for path in self._entries()}
        before = {name: getattr(jax.config, name) for name in settings}
        with self._failures_noted():
            try:
                for name, value in settings.items():
                    jax.config.update(name, value)
                compilation_cache.reset_cache()  # JAX looks at the folder's name only once
                yield
            finally:
                for name, value in before.items():
                    jax.config.update(name, value)
                compilation_cache.reset_cache()

    def added(self) -> list[Path]:
        """The entries that JAX has written, each of them whole."""
        return [
            path
            for path in self._entries()
            if path.name not in self._found and not any(_is_of(path.name, program) for program in self._unwritten)
        ]

    def _entries(self) -> list[Path]:
        return sorted(self._folder.glob(f"*{ENTRY_SUFFIX}"))

    @contextlib.contextmanager
    def _failures_noted(self) -> Iterator[None]:
        with warnings.catch_warnings():
            shown_before = warnings.showwarning

            def show(
                message: Warning | str, category: type[Warning], filename: str, lineno: int,
                file: TextIO | None = None, line: str | None = None,
            ) -> None:  # fmt: skip
                failed = _FAILED.match(str(message))
                if failed is None:
                    shown_before(message, category, filename, lineno, file, line)
                elif failed[1] == "reading":
                    self._forget(failed[2])
                else:
                    self._unwritten.add(failed[2])
                    self.write_error = self.write_error or failed[3]

            warnings.filterwarnings("always", "Error (reading|writing) persistent compilation cache entry")
            warnings.showwarning = show
            yield

    def _forget(self, program: str) -> None:
        """Takes the entries of a program away: JAX never writes over an entry, and is about to compile the program.

        Which of several entries it was is not told. The sound ones cost a compile.
        """
        for name in [name for name in self._found if _is_of(name, program)]:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink(missing_ok=True)
            self._found.discard(name)
            self.num_unusable += 1


@contextlib.contextmanager
def cache_passed_by() -> Iterator[None]:
    """JAX neither looks for programs in its cache nor leaves any there while the context lasts.

    It is a setting of the whole process. XLA cannot write out again what it has read from the cache: on CPUs such a
    copy lacks functions, which shows only when it runs.
    """
    before = jax.config.values["jax_enable_compilation_cache"]
    try:
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX looks at the setting only once
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _is_of(entry: str, program: str) -> bool:
    return entry.startswith(f"{program}-")
