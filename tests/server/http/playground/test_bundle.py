"""Modules that are joined into scripts; Node runs them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from server.http.playground.bundle import Bundle, BundleError, bundle
from tests.patience import PROCESS_S

NODE = shutil.which("node")

MODULES = {
    "a/main.js": """
import { one, two as second, Thing, count } from "../b.js";
import * as everything from "./all.js";
import fallback, { extra } from "./default.js";
import "./effect.js";
export { one };
const seen = [one, second, new Thing().name, count(), everything.one, everything.three, fallback(2), extra];
console.log(JSON.stringify(seen));
import("./later.js").then((later) => console.log(later.tell(), later.isSame(Thing)));
""",
    "b.js": """
export const one = 1;
export const two = 2;
export class Thing {
  name = "thing";
}
export async function wait() {}
export function* numbers() { yield 3; }
export function count() { return [...numbers()][0]; }
""",
    "a/all.js": """
export * from "../b.js";
const inner = 3;
export { inner as three };
export { two } from "../b.js";
""",
    "a/default.js": "export default (x) => x * 2;\nexport const extra = 'extra';\n",
    "a/effect.js": "console.log('effect');\n",
    "a/later.js": """
import { Thing } from "../b.js";
import { word } from "./only_later.js";
export const tell = () => word;
export const isSame = (other) => other === Thing;
""",
    "a/only_later.js": "export const word = 'later';\n",
}


def make(modules: Mapping[str, str], entry: str = "a/main.js") -> Bundle:
    return bundle(entry, "app", modules.__getitem__)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_joined_modules_do_what_they_did(tmp_path: Path) -> None:
    assert NODE is not None
    for name, text in (made := make(MODULES)).scripts.items():
        (tmp_path / name.replace(".js", ".mjs")).write_text(text.replace('.js")', '.mjs")'), encoding="utf-8")
    entry = made.entry.replace(".js", ".mjs")
    ended = subprocess.run([NODE, entry], cwd=tmp_path, capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert ended.stdout == 'effect\n[1,2,"thing",3,1,3,4,"extra"]\nlater true\n', ended.stderr


def test_what_is_loaded_later_is_a_script_of_its_own_without_what_is_there() -> None:
    made = make(MODULES)
    (later,) = (name for name in made.scripts if name.startswith("later-"))
    assert f'import("./{later}")' in made.scripts[made.entry]
    assert "word" not in made.scripts[made.entry]
    assert "class Thing" not in made.scripts[later]


def test_names_follow_the_content_of_all_that_is_in_a_script() -> None:
    before, after = make(MODULES), make({**MODULES, "a/only_later.js": "export const word = 'soon';\n"})
    assert make(MODULES) == before
    assert before.scripts.keys().isdisjoint(after.scripts)  # the first script names the other


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('import { a } from "./gone.js";', r"no module a/gone\.js"),
        ('import { a } from "react";', "'react', which is no path"),
        ('import { a } from "./main.js";', r"circle: a/main\.js → a/main\.js"),
        ("export let changing = 1;", "cannot be joined"),
        ("export const { a, b } = c;", "cannot be joined"),
        ("x(import.meta.url);", "cannot be joined"),
        ('import("./main.js");\nexport const a = 1;', None),
    ],
)
def test_what_cannot_be_joined_is_said(text: str, words: str | None) -> None:
    if words is None:  # a script that loads itself later finds itself
        make({"a/main.js": text})
        return
    with pytest.raises(BundleError, match=words):
        make({"a/main.js": text})
