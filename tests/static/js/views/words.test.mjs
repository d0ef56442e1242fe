import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";

import { shown } from "../../../../static/js/answer/prompt_tokens.js";
import { fromFragment, toFragment } from "../../../../static/js/views/setup_link.js";
import { LANGUAGES, requestOf } from "../../../../static/js/views/snippets.js";
import { shadeOf } from "../../../../static/js/views/token_flow.js";

const TASK = { prompt: "It's \"quoted\" \\ $HOME `x`\n☃", temperature: 0.5 };

test("a setup survives its way through the address", () => {
  for (const setup of [{}, { prompt: "☃ + / =", columns: [{ seed: "1" }] }]) {
    const fragment = toFragment(setup);
    assert.match(fragment, /^#setup=[\w-]*$/);
    assert.deepEqual(fromFragment(fragment), setup);
  }
  for (const odd of ["", "#", "#setup=", "#setup=%%%", "#setup=bnVsbA", "#setup=WzFd", `#setup=${"A".repeat(200_000)}`]) {
    assert.equal(fromFragment(odd), null);
  }
});

test("the shell and the JSON of each language give the request back", () => {
  const request = requestOf(TASK, "http://host");
  const sent = { ...TASK, stream: true };
  const printed = execFileSync("sh", ["-c", LANGUAGES.curl(request).replace(/^curl[\s\S]*?-d/, "printf %s")], { encoding: "utf8" });
  assert.deepEqual(JSON.parse(printed), sent);
  const inPython = /json\.loads\((.*)\)\n/.exec(LANGUAGES.Python(request))[1];
  assert.deepEqual(JSON.parse(JSON.parse(inPython)), sent);
  assert.deepEqual(JSON.parse(LANGUAGES.JSONL(request)).body, TASK);
  const inScript = /JSON\.stringify\(([\s\S]*)\),\n\}\);/.exec(LANGUAGES.JavaScript(request))[1];
  assert.deepEqual(JSON.parse(inScript), sent);
  assert.equal(requestOf({ messages: [] }, "").url, "/v1/chat/completions");
});

test("shades go from likely to surprising, and what cannot be seen is shown", () => {
  assert.deepEqual([0, -1, -20].map((logprob) => shadeOf({ logprob }, "probability")), [0, 5, 7]);
  assert.deepEqual([0, -1, -20].map((logprob) => shadeOf({ logprob }, "surprise")), [0, 1, 7]);
  assert.equal(shadeOf({ logprob: null }, "probability"), null);
  assert.equal(shadeOf({ logprob: -1 }, "none"), null);
  assert.equal(shown("a\n\tb"), "a↵\n⇥b");
});
