import assert from "node:assert/strict";
import { test } from "node:test";

import { highlightLine } from "../../../../static/js/markdown/highlight.js";
import { languageOf } from "../../../../static/js/markdown/languages.js";
import { processorTime } from "./processor_time.mjs";

const NAMES = ["python", "js", "ts", "c", "java", "go", "rust", "swift", "php", "sh", "sql", "json", "yaml", "toml", "html", "css", "ruby",
  "lua", "haskell", "r", "matlab", "docker", "make", "diff"];

/** The lines of a text, each as its parts. */
function highlighted(name, text) {
  let open = null;
  return text.split("\n").map((line) => {
    const result = highlightLine(line, open, languageOf(name));
    open = result.open;
    return result.parts;
  });
}

/** The lines with [kind:…] around what is coloured. */
function coloured(name, text) {
  const mark = (part) => (typeof part === "string" ? part : `[${part.attributes.class.slice(5)}:${part.children[0]}]`);
  return highlighted(name, text).map((parts) => parts.map(mark).join("")).join("\n");
}

test("each language has its words, comments and texts", () => {
  assert.equal(coloured("py", "def f(x): # no"), "[keyword:def] [call:f](x): [comment:# no]");
  assert.equal(coloured("js", 'let a = "//\\"" + 1.5;'), '[keyword:let] a = [string:"//\\""] + [number:1.5];');
  assert.equal(coloured("sql", "select 'a' -- b"), "[keyword:select] [string:'a'] [comment:-- b]");
  assert.equal(coloured("bash", 'echo $# "$x" # c'), '[keyword:echo] [key:$#] [string:"$x"] [comment:# c]');
  assert.equal(coloured("json", '{"a": [true, "b"]}'), '{[key:"a"]: [[number:true], [string:"b"]]}');
  assert.equal(coloured("yaml", "a: 1 # b"), "[key:a]: [number:1] [comment:# b]");
  assert.equal(coloured("html", '<a href="x">t</a>'), '[keyword:<a] href=[string:"x"][keyword:>]t[keyword:</a][keyword:>]');
  assert.equal(coloured("diff", "+a\n-b\n c"), "[inserted:+a]\n[deleted:-b]\n c");
});

test("texts and comments over several lines go on", () => {
  assert.equal(coloured("python", 'x = """a\n# b\n"""\n1'), 'x = [string:"""a]\n[string:# b]\n[string:"""]\n[number:1]');
  assert.equal(coloured("c", "a /* b\n\n c */ d"), "a [comment:/* b]\n\n[comment: c */] d");
});

test("no character is lost, and an unknown language is none", () => {
  assert.equal(languageOf("nonsense"), null);
  assert.equal(languageOf("constructor"), null);
  const source = "#include <x>\n\tif (a[0x1F] != '\\'') { /* é */ return \"ü\\\\\" ?: `z`; } // 漢 $x @y <b>\n\"open\n'''";
  const textOf = (parts) => parts.map((part) => part.children?.[0] ?? part).join("");
  for (const name of NAMES) assert.equal(highlighted(name, source).map(textOf).join("\n"), source, name);
});

test("no line takes longer than its length allows", () => {
  for (const piece of ["/*", '"', "'", "`", "#", "<a ", "a:", "$(", "${", "%", "@", "1", "--", "{-", "- "]) {
    for (const name of NAMES) {
      const line = piece.repeat(2000).slice(0, 2000);
      assert.ok(processorTime(() => highlightLine(line, null, languageOf(name))) < 500, `${name} ${piece}`);
    }
  }
});
