import assert from "node:assert/strict";
import { test } from "node:test";

import { Conversation } from "../../../../static/js/panels/conversation.js";

test("asks with the system prompt and all answered turns", () => {
  const conversation = new Conversation();
  assert.deepEqual(conversation.ask("", "one"), [{ role: "user", content: "one" }]);
  conversation.add("one", "1");
  conversation.add("unanswered", "");
  assert.deepEqual(conversation.ask("be brief", "two").map(({ role, content }) => [role, content]), [
    ["system", "be brief"],
    ["user", "one"],
    ["assistant", "1"],
    ["user", "two"],
  ]);
  conversation.clear();
  assert.equal(conversation.isEmpty, true);
});
