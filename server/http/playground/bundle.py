"""Joins ES modules into one script, and one more for each part that the page loads later.

Every module becomes a function in the order of its imports, and `$` holds what the modules export, by their numbers.
A part that is loaded by `import("./part.js")` becomes a script of its own that is given `$`, so that it shares the
modules that are there. Names have the digest of the content: a browser may keep such a file for good.

It reads what the playground's modules write: imports and exports that begin a line, of names that are never assigned
again, without circles. Anything else is a BundleError, which a test of the playground's own modules shows.
"""

import hashlib
import posixpath
import re
from collections.abc import Callable
from typing import NamedTuple

_IMPORT = re.compile(r"""^import\b\s*(?:([^"';()]+?)\s*\bfrom\s*)?["']([^"']+)["'];?""", re.MULTILINE)
_EXPORT_FROM = re.compile(
    r"""^export\s*(?:\{([^}]*)\}|\*(?:\s*as\s+([\w$]+))?)\s*from\s*["']([^"']+)["'];?""", re.MULTILINE
)
_EXPORT_LIST = re.compile(r"^export\s*\{([^}]*)\};?", re.MULTILINE)
_EXPORT = re.compile(
    r"^export\s+(default\s+)?((?:async\s+function|function|class|const)(?:\s*\*)?\s+([\w$]+))", re.MULTILINE
)
_EXPORT_DEFAULT = re.compile(r"^export\s+default\b", re.MULTILINE)
# `export: "…"` is a member of an object.
_LEFT = re.compile(r"^(?:export\b(?!\s*:)|import\b(?!\s*[(:])).*|\bimport\.meta\b", re.MULTILINE)
_LAZY = re.compile(r"""\bimport\(\s*["'](\.[^"']+)["']\s*\)""")
_NAMES = re.compile(r"([\w$]+)(?:\s+as\s+([\w$]+))?")
_CLAUSE = re.compile(r"(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)|\{([^}]*)\})?")


class BundleError(ValueError):
    """A module is written in a way that cannot be joined; the message names it."""


class Bundle(NamedTuple):
    """Scripts by their names; `entry` is the one that the page begins with."""

    entry: str
    scripts: dict[str, str]


class _Module(NamedTuple):
    code: str  # with {path} of lazy parts still as they are written
    imports: list[str]
    exports: list[str]  # members of an object literal
    heads: list[str]  # statements that bind what it imports, with the importing path as `$[path]`


def bundle(entry: str, name: str, read: Callable[[str], str]) -> Bundle:
    """Joins the module at a path with all that it imports.

    Args:
        name: of the first script.
        read: gives the text of a module, by its path; raises KeyError for one that is not there.

    Raises:
        BundleError: a module cannot be joined.
    """
    return _Bundler(read).make(entry, name)


def hashed_name(name: str, suffix: str, content: bytes) -> str:
    """A name with the digest of the content."""
    return f"{name}-{hashlib.sha256(content).hexdigest()[:16]}{suffix}"


class _Bundler:
    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = read
        self._modules: dict[str, _Module] = {}
        self._numbers: dict[str, int] = {}
        self._scripts: dict[str, str] = {}
        self._lazy: dict[str, str] = {}  # names of scripts by the paths of their first modules
        self._making: list[str] = []

    def make(self, entry: str, name: str) -> Bundle:
        paths = self._order(entry, set())
        self._there = set(paths)
        text = "const $=[];\n" + "".join(self._defined(path, "=") for path in paths)
        return Bundle(self._add(name, text), self._scripts)

    def _add(self, name: str, text: str) -> str:
        script = hashed_name(name, ".js", text.encode())
        self._scripts[script] = text
        return script

    def _order(self, path: str, seen: set[str], above: tuple[str, ...] = ()) -> list[str]:
        """The modules that a path needs, in the order in which they run, its own last."""
        if path in above:
            raise BundleError(f"modules import each other in a circle: {' → '.join([*above, path])}")
        if path in seen:
            return []
        seen.add(path)
        found = [name for needed in self._module(path).imports for name in self._order(needed, seen, (*above, path))]
        return [*found, path]

    def _defined(self, path: str, assign: str) -> str:
        module = self._module(path)
        code = _LAZY.sub(lambda match: self._lazy_import(_resolve(path, match[1])), module.code)
        lines = [*module.heads, *(line for line in code.split("\n") if line), f"return{{{','.join(module.exports)}}}"]
        return f"{self._cell(path)}{assign}(()=>{{\n" + "\n".join(lines) + "\n})();\n"

    def _lazy_import(self, path: str) -> str:
        if path not in self._lazy:
            if path in self._making:
                raise BundleError(f"{path} loads itself later")
            self._making.append(path)
            paths = [needed for needed in self._order(path, set()) if needed not in self._there]
            defined = "".join(self._defined(needed, "??=") for needed in paths)
            stem = posixpath.basename(path).removesuffix(".js")
            self._lazy[path] = self._add(stem, f"export default $=>{{\n{defined}return {self._cell(path)}}};\n")
            self._making.remove(path)
        return f'import("./{self._lazy[path]}").then(part=>part.default($))'

    def _cell(self, path: str) -> str:
        return f"$[{self._numbers.setdefault(path, len(self._numbers))}]"

    def _module(self, path: str) -> _Module:
        if path not in self._modules:
            try:
                text = self._read(path)
            except KeyError:
                raise BundleError(f"there is no module {path}") from None
            self._modules[path] = self._parse(path, text)
        return self._modules[path]

    def _parse(self, path: str, text: str) -> _Module:
        module = _Module("", [], [], [])

        def imported(name: str) -> str:
            if not name.startswith("."):
                raise BundleError(f"{path} imports {name!r}, which is no path")
            module.imports.append(_resolve(path, name))
            return self._cell(module.imports[-1])

        def on_import(match: re.Match[str]) -> str:
            cell = imported(match[2])
            clause = _CLAUSE.fullmatch((match[1] or "").strip())
            if clause is None:
                raise BundleError(f"{path}: {match[0]!r} cannot be read")
            default, namespace, names = clause.groups()
            if namespace:
                module.heads.append(f"const {namespace}={cell};")
            members = [f"default:{default}"] if default else []
            members += [f"{name}:{alias}" if alias else name for name, alias in _NAMES.findall(names or "")]
            if members:
                module.heads.append(f"const{{{','.join(members)}}}={cell};")
            return ""

        def on_export_from(match: re.Match[str]) -> str:
            cell = imported(match[3])
            if match[1] is None:
                module.exports.append(f"{match[2]}:{cell}" if match[2] else f"...{cell}")
            for name, alias in _NAMES.findall(match[1] or ""):
                module.exports.append(f"{alias or name}:{cell}.{name}")
            return ""

        def on_export_list(match: re.Match[str]) -> str:
            module.exports.extend(f"{alias}:{name}" if alias else name for name, alias in _NAMES.findall(match[1]))
            return ""

        def on_export(match: re.Match[str]) -> str:
            module.exports.append(f"default:{match[3]}" if match[1] else match[3])
            return match[2]

        def on_default(_: re.Match[str]) -> str:
            module.exports.append("default:$default")
            return "const $default="

        for pattern, handle in (
            (_IMPORT, on_import), (_EXPORT_FROM, on_export_from), (_EXPORT_LIST, on_export_list),
            (_EXPORT, on_export), (_EXPORT_DEFAULT, on_default),
        ):  # fmt: skip
            text = pattern.sub(handle, text)
        if left := _LEFT.search(text):
            raise BundleError(f"{path}: {left[0]!r} cannot be joined with other modules")
        return module._replace(code=text)


def _resolve(path: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
