"""What the references of a JSON schema point to."""

from __future__ import annotations

from typing import Any


def is_pointer(reference: Any) -> bool:
    """Whether a reference names a part of its own schema by its place (RFC 6901)."""
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


def target_of(reference: Any, root: Any) -> Any:
    """What a reference within the schema points to; None for any other reference."""
    if not is_pointer(reference):
        return None
    node = root
    for step in reference[2:].split("/") if len(reference) > 2 else ():
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node
