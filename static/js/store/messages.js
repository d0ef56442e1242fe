/** From the nodes of a path to the messages, or the text, that the model sees. */

import { fenced } from "../attachments/fence.js";
import { words } from "../words/words.js";

const PICTURE_SIZE = 1000; // characters of a text that has about as many tokens as a picture

/** What a completion has written so far. */
export function textOf(path) {
  return path.map(({ content }) => content).join("");
}

/** The nodes of a path that are sent: those from this one on, or all where it is not among them. */
export function sentOf(path, sentFrom) {
  const first = path.findIndex(({ id }) => id === sentFrom);
  return path.slice(Math.max(0, first));
}

/** Where to begin so that about half of what is sent stays, with a question first. @returns {string|null} a node's id */
export function shorterFrom(path, sentFrom) {
  const sent = sentOf(path, sentFrom);
  const sizeOfFile = ({ text }) => text?.length ?? PICTURE_SIZE;
  const sizeOf = (nodes) => nodes.reduce((sum, { content, attachments = [] }) => sum + content.length + attachments.reduce((all, file) => all + sizeOfFile(file), 0), 0);
  const half = sizeOf(sent) / 2;
  const starts = sent.filter(({ role }) => role === "user").slice(1);
  return (starts.find((node) => sizeOf(sent.slice(sent.indexOf(node))) <= half) ?? starts.at(-1))?.id ?? sentFrom;
}

/** A picture as a part of a message. @param {{url: string}} attachment */
export function pictureOf({ url }) {
  return { type: "image_url", image_url: { url } };
}

/** The note in the place of a picture for a model that reads text alone. */
export function noteOf() {
  return { type: "text", text: words.attachments.note };
}

/** The pictures of a path. @returns {{name: string, url: string}[]} */
export function picturesOf(path) {
  return path.flatMap(({ attachments = [] }) => attachments.filter(({ url }) => url !== undefined));
}

/**
 * A question whose answer has not a word is left out with it: chat templates want both, in turns.
 *
 * @param {string} system the system prompt; an empty one is not sent
 * @param {object[]} path nodes from the top to the last message
 * @param {(attachment: object) => object} asPart the part of a message that a picture becomes
 */
export function messagesOf(system, path, asPart = pictureOf) {
  const messages = system.trim() === "" ? [] : [{ role: "system", content: system }];
  for (const node of path) {
    if (node.role === "user") messages.push({ role: "user", content: contentOf(node, asPart) });
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

/** The pictures come first, then the files, then the words about them. */
function contentOf({ content, attachments }, asPart) {
  const parts = attachments.filter(({ url }) => url !== undefined).map(asPart);
  const text = attachments.filter(({ url }) => url === undefined).map(fenced).join("") + content;
  if (text !== "") parts.push({ type: "text", text });
  return parts.every(({ type }) => type === "text") ? parts.map((part) => part.text).join("\n\n") : parts;
}
