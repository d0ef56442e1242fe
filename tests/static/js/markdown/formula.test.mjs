import assert from "node:assert/strict";
import { test } from "node:test";

import { parseMarkdown } from "../../../../static/js/markdown/stream.js";

/** A text as it is shown, with ⟦…⟧ around the source of a formula. */
function shown(text) {
  const outline = (parts) => parts.map((part) => {
    if (typeof part === "string") return part;
    if (part.formula !== undefined) return `⟦${part.formula.isDisplay ? "display " : ""}${part.children[0]}⟧`;
    return part.tag === "p" ? outline(part.children) : `<${part.tag}>${outline(part.children)}</${part.tag}>`;
  }).join("");
  return outline(parseMarkdown(text));
}

test("formulas are found, with nothing of their source taken for markdown", () => {
  for (const [text, expected] of [
    [String.raw`a \(x_1 \, x_2\) b`, String.raw`a ⟦\(x_1 \, x_2\)⟧ b`],
    ["$x_i^2$, *so* $$y$$.", "⟦$x_i^2$⟧, <em>so</em> ⟦display $$y$$⟧."],
    ["Thus:\n\\[\na \\\\\n- b_1\n\\]\n*so*", "Thus:⟦display \\[\na \\\\\n- b_1\n\\]⟧<em>so</em>"],
    [String.raw`1. First $$a\\b$$`, String.raw`<ol><li>First ⟦display $$a\\b$$⟧</li></ol>`],
    ["a | b\n-|-\n$x$ | y", "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>⟦$x$⟧</td><td>y</td></tr></tbody></table></div>"],
    ["`$x$` and \\$5", "<code>$x$</code> and $5"],
  ]) assert.equal(shown(text), expected);
});

test("prices and variables of a shell are no formulas", () => {
  for (const text of ["$5 and $10", "5$ and 6$", "US$5/US$6", "$HOME/bin:$PATH", "$5 or so, in all 6$", "5 $ and 6 $", "$$$", "$ x $"]) {
    assert.equal(shown(text), text);
  }
});

test("a formula that has not ended is the text that was written", () => {
  for (const text of [String.raw`\(a_1 *b*`, String.raw`\[ a_1 \\ \, *b*`, "$$\na_1 *b*", String.raw`so \, and \\ and \{ \]`]) {
    assert.equal(shown(text), text);
  }
  assert.equal(shown("\\[ a\n\n*b*"), "\\[ a<em>b</em>"); // an empty line ends it
});
