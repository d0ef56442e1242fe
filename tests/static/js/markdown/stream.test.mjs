import assert from "node:assert/strict";
import { test } from "node:test";

import { MarkdownStream, parseMarkdown } from "../../../../static/js/markdown/stream.js";
import { processorTime } from "./processor_time.mjs";

const TEXT = `# Title *x*

Hello **bold *nested* text** and \`code\` [link](https://a.b/c(d)) <script>alert(1)</script>
second line https://x.y/z. snake_case_name ~~gone~~

- one
- two
  - nested
  1. ord
- three

  para in three
1. a
2. b
   \`\`\`js
   let x = 1;
   \`\`\`
7) c
> quote
> - list\r
lazy?
so $x_1$ and \\(y_2\\):
\\[
a \\\\ - b

$$
- c
$$ then *d* $5 or $6
\\[ open_a_

| a | b |\r
|---|:-:|
| 1 | \`x|y\` |
2 | 3

~~~python
print("hi")
# no heading

~~~
***
tail
text | x
--- | ---
a | b
- [x] done
\`\`\`
open`;

/** Blocks without where they begin, which depends on what was parsed together. */
const withoutStart = (blocks) => blocks.map(({ start: _, ...block }) => block);

function inPieces(pieces) {
  const stream = new MarkdownStream();
  const blocks = pieces.flatMap((piece) => stream.feed(piece).stable);
  return withoutStart([...blocks, ...stream.end()]);
}

/** The text of parsed parts, with a mark for each element. */
function outline(parts) {
  return parts.map((part) => (typeof part === "string" ? part : `<${part.tag}>${outline(part.children)}</${part.tag}>`)).join("");
}

test("however a text is cut in two, or into characters, its blocks are those of the whole", () => {
  const whole = withoutStart(parseMarkdown(TEXT));
  assert.deepEqual(inPieces([...TEXT]), whole);
  for (let cut = 0; cut <= TEXT.length; cut += 1) {
    assert.deepEqual(inPieces([TEXT.slice(0, cut), TEXT.slice(cut)]), whole, `cut at ${cut}`);
  }
});

test("whatever lines follow each other, pieces give what the whole gives, and every word is shown", () => {
  const lines = ["# h", "word", "- a", "  - b", "   deep", "1. one", "2. two", "> q", "```", "a | b", "--|--", "", "---", "* * *", "**b", "  ", "\\[", "\\]", "$$", "$x$ \\(y"];
  let seed = 1;
  const draw = (limit) => {
    seed = (seed * 48271) % 0x7fffffff;
    return seed % limit;
  };
  for (let round = 0; round < 300; round += 1) {
    const text = Array.from({ length: 1 + draw(9) }, () => lines[draw(lines.length)]).join("\n");
    const pieces = [];
    for (let at = 0; at < text.length; ) {
      const length = 1 + draw(4);
      pieces.push(text.slice(at, at + length));
      at += length;
    }
    const whole = withoutStart(parseMarkdown(text));
    assert.deepEqual(inPieces(pieces), whole, JSON.stringify(text));
    const shown = outline(whole);
    for (const word of ["word", "deep"]) {
      assert.equal(shown.split(word).length, text.split(word).length, JSON.stringify(text));
    }
  }
});

test("a block that nothing can change is given once, and the last one stays open", () => {
  const stream = new MarkdownStream();
  assert.deepEqual(stream.feed("one\n\n").stable, []);
  assert.deepEqual(stream.feed("two").stable, []);
  const { stable, open } = stream.feed("\n");
  assert.equal(outline(stable), "<p>one</p>");
  assert.equal(outline(open), "<p>two</p>");
});

test("a line that may yet become a fence is not shown", () => {
  const stream = new MarkdownStream();
  assert.equal(outline(stream.feed("a\n``").open), "<p>a</p>");
  assert.match(outline(stream.feed("`js\nx").open), /<span>js<\/span>.*<code>x\n<\/code>/);
});

test("HTML, and links that are no web addresses, are text", () => {
  for (const text of ["<b>x</b>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "[x](data:text/html,x)", "![x](/a)"]) {
    assert.equal(outline(parseMarkdown(text)), `<p>${text}</p>`);
  }
  const [paragraph] = parseMarkdown("[x](https://a.b) and https://c.d/(e). ![pic](https://a.b/c.png)");
  const links = paragraph.children.filter(({ tag }) => tag === "a");
  assert.deepEqual(links.map(({ attributes }) => attributes.href), ["https://a.b", "https://c.d/(e)", "https://a.b/c.png"]);
  assert.ok(links.every(({ attributes }) => attributes.rel.includes("noopener")));
});

test("emphasis, code and names", () => {
  const inline = (text) => outline(parseMarkdown(text)).replace(/^<p>|<\/p>$/g, "");
  assert.equal(inline("*a* **b** ***c*** ~~d~~"), "<em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del>");
  assert.equal(inline("some_file_name 2 * 3 * 4 \\*no\\*"), "some_file_name 2 * 3 * 4 *no*");
  assert.equal(inline("`a*b*` ``c`d`` `open"), "<code>a*b*</code> <code>c`d</code> `open");
});

test("no text takes longer than its length allows", () => {
  const evil = ["$", "$$ ", "$a", "\\(", "\\[a", "\n$$", "\n\\[x", "$x$ ", "*", "[", "`a", "[]", "> ", "**a ", "<https://", "_a_", "- ", "* a\n", "![](", "[a](", "|-|\n", "~~a "];
  for (const piece of evil) {
    assert.ok(processorTime(() => parseMarkdown(piece.repeat(10_000))) < 2000, JSON.stringify(piece));
  }
});

test("a list has room for its longest number", () => {
  const [list] = parseMarkdown("9. a\n10. b");
  assert.deepEqual(list.attributes, { start: "9", class: "digits-2" });
  assert.equal(parseMarkdown("123. a")[0].attributes.class, "digits-3");
  assert.deepEqual(parseMarkdown("1. a\n2. b")[0].attributes, {});
});
