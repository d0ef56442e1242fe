/** From the nodes of a path to the messages that the model sees. */

import { fenced } from "../attachments/fence.js";

/**
 * A question whose answer has not a word is left out with it: chat templates want both, in turns.
 *
 * @param {string} system the system prompt; an empty one is not sent
 * @param {object[]} path nodes from the top to the last message
 */
export function messagesOf(system, path) {
  const messages = system.trim() === "" ? [] : [{ role: "system", content: system }];
  for (const node of path) {
    if (node.role === "user") messages.push({ role: "user", content: withAttachments(node) });
    else if (node.role === "tool") messages.push({ role: "tool", tool_call_id: node.toolCallId, content: node.content });
    else if (node.content !== "" || node.toolCalls.length > 0) messages.push(answerOf(node));
    else if (messages.at(-1)?.role === "user") messages.pop();
  }
  return messages;
}

function answerOf(node) {
  const message = { role: "assistant", content: node.content };
  if (node.reasoning !== "") message.reasoning_content = node.reasoning;
  if (node.toolCalls.length > 0) {
    message.tool_calls = node.toolCalls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return message;
}

/** The files come before the words about them. */
function withAttachments({ content, attachments }) {
  return attachments.map(fenced).join("") + content;
}
