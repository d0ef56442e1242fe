"""Takes comments and needless spaces out of the playground's own files."""

import re

_COMMENT = re.compile(r"""((?:[^"'`/]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`|/(?!/))*?)\s+//\s.*""")
_SPACES = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\s*([=,(){};:])\s*""")


def lighten(text: str, *, is_script: bool = True) -> str:
    """A file without its indentation and its comments; a script also without needless spaces.

    Every line keeps its number. The playground's files have no texts of several lines, which would change.
    """
    lines: list[str] = []
    is_comment = False
    for line in text.split("\n"):
        line = line.strip()
        if not is_comment and "//" in line:
            line = _without_comment(line)
        is_comment = is_comment or line.startswith("/*")
        if is_comment:
            _, end, line = line.partition("*/")
            is_comment = end == ""
            line = line.strip() if end else ""
        lines.append(_tighten(line) if is_script else line)
    return "\n".join(lines)


def _tighten(line: str) -> str:
    """A line of JavaScript without spaces beside its marks, where that is certain: it has no template and no regex."""
    return line if "`" in line or "/" in line else _SPACES.sub(lambda found: found[1] or found[2], line)


def _without_comment(line: str) -> str:
    """A line of code without the comment at its end; texts in quotes stay whole."""
    if line.startswith("//"):
        return ""
    found = _COMMENT.fullmatch(line)
    return line if found is None else found[1]
