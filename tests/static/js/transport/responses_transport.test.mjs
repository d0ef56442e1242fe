import assert from "node:assert/strict";
import { test } from "node:test";

import { requestOf } from "../../../../static/js/transport/responses_transport.js";

test("pictures of a message are pictures of the Responses API", () => {
  const url = "data:image/png;base64,AAAA";
  const content = [{ type: "image_url", image_url: { url } }, { type: "text", text: "What?" }];
  const { input } = requestOf({ messages: [{ role: "user", content }, { role: "assistant", content: "A cat." }] });
  assert.deepEqual(input, [
    { type: "message", role: "user", content: [{ type: "input_image", image_url: url }, { type: "input_text", text: "What?" }] },
    { type: "message", role: "assistant", content: "A cat." },
  ]);
});
