/** A request of another client as a conversation of this browser. */

import { figuresOfEnd } from "../words/figures.js";
import { words } from "../words/words.js";
import { makeId } from "./library.js";
import { makeAnswer, readNode } from "./tree.js";

/**
 * @param {object} record of `GET /v1/requests/{id}`, of a chat
 * @returns {{system: string, nodes: object[]}} the nodes from the top to the answer, if there is one
 */
export function conversationOf(record) {
  const [{ messages }] = record.request.prompts;
  const system = [];
  const nodes = [];
  const created = Math.round(1000 * record.created);
  const place = () => ({ id: makeId(), parent: nodes.at(-1)?.id ?? null, created: created + nodes.length });
  for (const message of messages) {
    const { role, content } = message;
    if (nodes.length === 0 && (role === "system" || role === "developer")) {
      system.push(textOf(content));
      continue;
    }
    nodes.push(readNode({
      ...place(), role: role === "assistant" || role === "tool" ? role : "user", content: textOf(content), finish: "stop",
      reasoning: message.reasoning_content, toolCalls: (message.tool_calls ?? []).map(callOf), toolCallId: message.tool_call_id,
    }));
  }
  const answer = record.answers[0];
  if (answer?.token_ids.length > 0) nodes.push(answerOf(record, answer, place()));
  return { system: system.join("\n\n"), nodes };
}

function answerOf(record, { token_ids: ids, token_texts: texts, text, events, finish_reason: finish }, place) {
  const node = makeAnswer({ ...place, model: record.model, parameters: record.request.parameters, transport: "sse" });
  const arrivals = events.flatMap(([at, count]) => Array(count).fill(at));
  return Object.assign(node, {
    content: text ?? "",
    promptTokens: record.prompts[0].token_ids,
    events: ids.map((id, at) => ({ at: arrivals[at] ?? 0, text: texts?.[at] ?? "", reasoning: "", ids: [id], logprobs: null })),
    finish: finish ?? "cut",
    figures: figuresOfEnd(ids.length, finish ?? record.state),
  });
}

function callOf({ id = "", function: { name = "", arguments: given = "" } = {} }, index) {
  return { index, id, name, arguments: textOf(given) };
}

function textOf(value) {
  if (typeof value === "string") return value;
  // The record of a request has no pictures.
  if (Array.isArray(value)) return value.map(({ type, text }) => (type === "image" ? `[${words.attachments.picture}]` : (text ?? ""))).join("\n");
  return value === null || value === undefined ? "" : JSON.stringify(value);
}
