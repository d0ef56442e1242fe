/**
 * Conversations as files: in this page's own form, in those of llama.cpp's page and of Open WebUI, and as Markdown.
 * Files of ChatGPT's export can be read too.
 *
 * The own form has everything. The others have what those programs know: messages, their branches, models and titles;
 * Markdown is for readers, and has the branch that is shown.
 */

import { words } from "../words/words.js";
import { picturesOf } from "./messages.js";
import { MAX_NODES, Tree, readNode } from "./tree.js";

const FORMAT = "eagre.conversations";
const ROOT = "root"; // llama.cpp has a node of this type above the first message

/** The text of a file. @param {object[]} conversations @param {keyof import("./formats.js").FORMATS} format */
export function toFile(conversations, format) {
  if (format === "markdown") return conversations.map(toMarkdown).join("\n\n---\n\n");
  const own = () => ({ format: FORMAT, version: 1, conversations: conversations.map(toOwn) });
  const other = { llama: toLlama, openwebui: toOpenWebUi }[format];
  return JSON.stringify(other === undefined ? own() : conversations.map(other), null, 1);
}

/**
 * The conversations of a file of any of these forms, without ids.
 *
 * @throws {Error} with a sentence that says what is wrong with the file
 */
export function fromFile(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error(words.sidebar.notJson);
  }
  const isOwn = file?.format === FORMAT && Array.isArray(file.conversations);
  const entries = isOwn ? file.conversations : [file].flat();
  const readers = isOwn ? entries.map(() => fromOwn) : entries.map(readerOf);
  if (readers.length === 0 || readers.includes(null)) throw new Error(words.sidebar.noConversations);
  return entries.map((entry, index) => {
    try {
      return readers[index](entry);
    } catch (error) {
      throw new Error(words.sidebar.unreadable(index + 1, error.message));
    }
  });
}

function readerOf(entry) {
  if (entry === null || typeof entry !== "object") return null;
  if (Array.isArray(entry.messages) && isObject(entry.conv)) return fromLlama;
  if (isObject(entry.mapping)) return fromChatGpt;
  return isObject(entry.chat) ? fromOpenWebUi : null;
}

function toOwn({ kind, title, system, created, updated, tree }) {
  return { kind, title, system, created, updated, chosen: tree.chosen(), messages: tree.nodes() };
}

function fromOwn(raw) {
  if (!Array.isArray(raw?.messages)) throw new Error(words.files.noMessages);
  return made(raw.messages, {
    kind: raw.kind === "completion" ? "completion" : "chat", title: raw.title, system: raw.system, created: raw.created,
    updated: raw.updated, chosen: Object(raw.chosen),
  });
}

function toLlama({ id, title, system, updated, created, tree }) {
  const root = { id: `${id}-root`, role: "system", type: ROOT, content: "", timestamp: created, parent: null };
  const above = system === "" ? [root] : [root, { ...root, id: `${id}-system`, type: "text", content: system, parent: root.id }];
  const messages = tree.nodes().map((node) => ({
    id: node.id, role: node.role, type: "text", content: withFiles(node), timestamp: node.created,
    parent: node.parent ?? above.at(-1).id, thinking: node.reasoning ?? "", model: node.model ?? undefined,
    toolCalls: node.toolCalls?.length > 0 ? JSON.stringify(node.toolCalls.map(callOf)) : "",
    ...(node.role === "tool" ? { toolCallId: node.toolCallId } : {}),
    ...given("extra", picturesOf([node]).map(({ name, url }) => ({ type: "IMAGE", name, base64Url: url }))),
  }));
  const all = [...above, ...messages].map((message) => ({ convId: id, thinking: "", ...message }));
  for (const message of all) message.children = all.filter(({ parent }) => parent === message.id).map((child) => child.id);
  const currNode = tree.path().at(-1)?.id ?? root.id;
  return { conv: { id, name: title, lastModified: updated, currNode }, messages: all };
}

function fromLlama({ conv, messages }) {
  const isAbove = ({ type, role }) => type === ROOT || role === "system";
  const above = new Set(messages.filter(isAbove).map(({ id }) => String(id)));
  const system = messages.filter((one) => one.role === "system" && one.type !== ROOT).map(({ content }) => content).join("\n\n");
  const nodes = messages.filter((one) => !isAbove(one)).map((one) => ({
    id: String(one.id), parent: one.parent === null || above.has(String(one.parent)) ? null : String(one.parent),
    role: one.role, content: textOf(one.content), created: Number(one.timestamp), model: one.model,
    reasoning: one.thinking ?? one.reasoningContent, toolCalls: callsOf(one.toolCalls), toolCallId: one.toolCallId,
    attachments: (one.extra ?? []).map(({ name, content, base64Url: url }) => ({ name: String(name), ...(url === undefined ? { text: content } : { url }) })),
    finish: "stop",
  }));
  const updated = Number(conv.lastModified);
  return made(nodes, { title: conv.name, system, created: nodes[0]?.created, updated, shown: conv.currNode });
}

function toOpenWebUi({ id, title, system, created, updated, tree }) {
  const seconds = (milliseconds) => Math.round(milliseconds / 1000);
  const shape = (node) => ({
    id: node.id, parentId: node.parent, childrenIds: tree.childrenOf(node.id).map((child) => child.id), role: node.role,
    content: withFiles(node), timestamp: seconds(node.created), ...(node.model ? { model: node.model, done: true } : {}),
    ...given("files", picturesOf([node]).map(({ name, url }) => ({ type: "image", name, url }))),
  });
  const nodes = tree.nodes();
  const models = [...new Set(nodes.map(({ model }) => model).filter(Boolean))];
  const history = { messages: Object.fromEntries(nodes.map((node) => [node.id, shape(node)])), currentId: tree.path().at(-1)?.id ?? null };
  return {
    id, title, created_at: seconds(created), updated_at: seconds(updated), archived: false, pinned: false, meta: {},
    chat: { title, models, params: system === "" ? {} : { system }, history, messages: tree.path().map(shape), timestamp: created },
  };
}

function fromOpenWebUi({ title, chat, created_at: created, updated_at: updated }) {
  const messages = Object.values(Object(chat.history?.messages));
  const listed = messages.length > 0 ? messages : (chat.messages ?? []);
  const nodes = listed.map((one, at) => ({
    id: String(one.id), parent: one.parentId ?? (messages.length > 0 || at === 0 ? null : String(listed[at - 1].id)), role: one.role,
    content: textOf(one.content), created: 1000 * Number(one.timestamp), model: one.model, finish: "stop",
    attachments: (one.files ?? []).filter(({ type }) => type === "image").map(({ name, url }) => ({ name: name ?? words.attachments.picture, url })),
  }));
  const above = nodes.filter(({ role }) => role === "system");
  const system = chat.params?.system ?? chat.system ?? above.map(({ content }) => content).join("\n\n");
  const idsAbove = new Set(above.map(({ id }) => id));
  const kept = nodes.filter(({ role }) => role !== "system").map((node) => (idsAbove.has(node.parent) ? { ...node, parent: null } : node));
  const times = { created: 1000 * created, updated: 1000 * updated };
  return made(kept, { title: title ?? chat.title, system, ...times, shown: chat.history?.currentId });
}

function toMarkdown({ title, system, kind, tree }) {
  const path = tree.path();
  if (kind === "completion") return `# ${title}\n\n${path.map(({ content }) => content).join("")}`;
  const { user, tool, model: anyModel } = words.chat;
  const names = { user: () => user, tool: () => tool, assistant: ({ model }) => model ?? anyModel };
  const parts = path.map((node) => `## ${names[node.role](node)}\n\n${[...picturesOf([node]).map(({ name }) => `*${name}*`), withFiles(node), ...(node.toolCalls ?? []).map(codeOf)].join("\n\n").trim()}`);
  return [`# ${title}`, ...(system === "" ? [] : [`> ${system.replaceAll("\n", "\n> ")}`]), ...parts].join("\n\n");
}

function codeOf({ name, arguments: given }) {
  return `\`\`\`json\n${name}(${given})\n\`\`\``;
}

/** ChatGPT's form: nodes by their ids, of which some have no message, and what nobody sees. */
function fromChatGpt({ title, mapping, current_node: current, create_time: created, update_time: updated }) {
  const isSeen = ({ message }) => {
    const isHidden = message?.metadata?.is_visually_hidden_from_conversation === true || (message?.recipient ?? "all") !== "all";
    return ["user", "assistant"].includes(message?.author?.role) && !isHidden && textOfParts(message.content).trim() !== "";
  };
  const seenAbove = (id) => {
    for (let at = mapping[id]?.parent, steps = 0; at != null && steps < MAX_NODES; at = mapping[at]?.parent, steps += 1) {
      if (mapping[at] !== undefined && isSeen(mapping[at])) return at;
    }
    return null;
  };
  const nodes = Object.entries(mapping).filter(([, entry]) => isObject(entry) && isSeen(entry)).map(([id, { message }]) => ({
    id, parent: seenAbove(id), role: message.author.role, content: textOfParts(message.content), created: 1000 * Number(message.create_time),
    model: message.metadata?.model_slug, finish: "stop",
  }));
  const shown = nodes.some(({ id }) => id === current) ? current : seenAbove(current);
  return made(nodes, { title, created: 1000 * created, updated: 1000 * updated, shown });
}

function textOfParts(content) {
  return (content?.parts ?? [content?.text]).filter((part) => typeof part === "string").join("\n\n");
}

/** A conversation of raw messages; throws where one of them is none. */
function made(messages, { kind = "chat", title, system, created, updated, chosen = {}, shown }) {
  if (messages.length > MAX_NODES) throw new Error(words.files.tooMany(MAX_NODES));
  const tree = new Tree(messages.map(readNode), chosen);
  if (typeof shown === "string" && tree.get(shown) !== null) tree.show(shown);
  const time = (value) => (Number.isFinite(value) ? value : 0);
  return {
    kind, title: textOf(title), system: textOf(system), created: time(created), updated: time(updated), state: "", sentFrom: null,
    tree,
  };
}

/** The text files before the content; pictures have places of their own. */
function withFiles({ content, attachments = [] }) {
  return attachments.filter(({ url }) => url === undefined).map(({ name, text }) => `${name}\n\n${text}\n\n`).join("") + content;
}

/** A member of an object, or none where the list is empty. */
const given = (name, list) => (list.length > 0 ? { [name]: list } : {});

function callOf({ id, name, arguments: given }) {
  return { id, type: "function", function: { name, arguments: given } };
}

function callsOf(text) {
  if (typeof text !== "string" || text === "") return [];
  try {
    return JSON.parse(text).map((call, index) => ({ index, id: call.id ?? "", name: call.function?.name ?? "", arguments: call.function?.arguments ?? "" }));
  } catch {
    return []; // of a file that somebody has changed
  }
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const textOf = (value) => (typeof value === "string" ? value : "");
