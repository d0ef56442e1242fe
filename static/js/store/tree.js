/**
 * The messages of one conversation as a tree: an edit or a new answer is a sibling, nothing is overwritten.
 *
 * Every node has
 *   id, parent      the parent's id, or null at the top
 *   role            "user", "assistant" or "tool"
 *   content         text
 *   created         milliseconds since 1970
 * a user's node also
 *   attachments     [{name, text}], of pictures [{name, url}] with data URLs
 * a tool's node also
 *   toolCallId      the call that it answers
 * and an assistant's node also
 *   reasoning       text before the answer
 *   toolCalls       [{id, name, arguments}], the arguments as text
 *   model           the name of the model
 *   parameters      as they were sent, the seed included, without the messages
 *   seed            the seed that was sent
 *   transport       "sse", "websocket" or "responses"
 *   promptTokens    ids of the prompt's tokens, or null where the server did not tell them
 *   events          one entry for each chunk, [{at, text, reasoning, ids, logprobs}]: `at` in milliseconds since the
 *                   request, or null for what came after a reload, `ids` the token ids or null, `logprobs` as JSON, or null. A continued
 *                   answer goes on in the same list, and in the same time
 *   usage, metrics  as the server sent them, or null
 *   figures         the line under the answer, see `words/figures.js`
 *   finish          null while it is being written, else the reason; "cut" where the stream was lost for good
 *   error           the server's sentence, or null
 *   stream          {id, place} of a resumable stream that has not ended, or null
 *   measured        {numTokens, numTimed, milliseconds} of the requests for it that have ended (see `answer/recorder.js`), or null
 */

import { isPictureUrl } from "../attachments/picture.js";
import { isFigure } from "../words/figures.js";
import { words } from "../words/words.js";

const ROLES = ["user", "assistant", "tool"];
const TOP = ""; // stands for the parent null among the choices

export const MAX_NODES = 20_000;

export class Tree {
  #nodes = new Map();
  #children = new Map([[TOP, []]]); // parent's id -> ids, oldest first
  #chosen = new Map(); // parent's id -> the child that is shown

  /**
   * @param {Iterable<object>} nodes in any order; a node without its parent is left out with all below it
   * @param {Object<string, string>} chosen the child that each parent shows
   */
  constructor(nodes = [], chosen = {}) {
    const given = [...nodes].sort((a, b) => a.created - b.created);
    // A clock that was set back must not part a node from its parent.
    for (let waiting = given; waiting.length > 0; ) {
      const later = waiting.filter((node) => !this.#adopt(node));
      if (later.length === waiting.length) break;
      waiting = later;
    }
    for (const [parent, child] of Object.entries(chosen)) {
      if (this.#children.get(parent)?.includes(child)) this.#chosen.set(parent, child);
    }
  }

  get size() {
    return this.#nodes.size;
  }

  get(id) {
    return this.#nodes.get(id) ?? null;
  }

  /** All nodes, parents before their children. */
  nodes() {
    return [...this.#nodes.values()];
  }

  /** The choices, as plain data. */
  chosen() {
    return Object.fromEntries(this.#chosen);
  }

  /** Adds a node and shows it. */
  add(node) {
    if (this.#nodes.has(node.id)) throw new Error(`the tree has a node ${node.id} already`);
    if (!this.#adopt(node)) throw new Error(`the tree has no node ${node.parent}`);
    this.#chosen.set(node.parent ?? TOP, node.id);
    return node;
  }

  /** The nodes from the top to the end of what is shown. */
  path() {
    const path = [];
    for (let id = this.#shownChild(TOP); id !== null; id = this.#shownChild(id)) path.push(this.#nodes.get(id));
    return path;
  }

  /** The nodes from the top to this one. */
  pathTo(id) {
    const path = [];
    for (let node = this.get(id); node !== null; node = this.get(node.parent)) path.unshift(node);
    return path;
  }

  /** The nodes in whose place this one stands, itself included, oldest first. */
  siblings(id) {
    const { parent } = this.#nodes.get(id);
    return this.#children.get(parent ?? TOP).map((sibling) => this.#nodes.get(sibling));
  }

  childrenOf(id) {
    return this.#children.get(id ?? TOP).map((child) => this.#nodes.get(child));
  }

  /** Shows this node, with all above it. */
  show(id) {
    for (const node of this.pathTo(id)) this.#chosen.set(node.parent ?? TOP, node.id);
  }

  /** This node and all below it, parents before their children. */
  below(id) {
    const found = [this.#nodes.get(id)];
    for (let at = 0; at < found.length; at += 1) found.push(...this.childrenOf(found[at].id));
    return found;
  }

  /** Brings back nodes that were taken out, parents before their children, each in its old place among its siblings. */
  restore(nodes) {
    for (const node of nodes) {
      this.#adopt(node);
      this.#children.get(node.parent ?? TOP)?.sort((a, b) => this.#nodes.get(a).created - this.#nodes.get(b).created);
    }
    this.show(nodes.at(-1).id);
    this.show(nodes[0].id);
  }

  /** Takes a node out with all below it; a sibling is shown instead. Returns the ids that are gone. */
  remove(id) {
    const node = this.#nodes.get(id);
    const parent = node.parent ?? TOP;
    const siblings = this.#children.get(parent);
    const index = siblings.indexOf(id);
    siblings.splice(index, 1);
    if (this.#chosen.get(parent) === id) {
      this.#chosen.delete(parent);
      if (siblings.length > 0) this.#chosen.set(parent, siblings[Math.max(0, index - 1)]);
    }
    const gone = [];
    for (const waiting = [id]; waiting.length > 0; ) {
      const next = waiting.pop();
      gone.push(next);
      waiting.push(...this.#children.get(next));
      this.#children.delete(next);
      this.#chosen.delete(next);
      this.#nodes.delete(next);
    }
    return gone;
  }

  #adopt(node) {
    if (this.#nodes.has(node.id)) return true;
    const siblings = this.#children.get(node.parent ?? TOP);
    if (siblings === undefined) return false;
    siblings.push(node.id);
    this.#nodes.set(node.id, node);
    this.#children.set(node.id, []);
    return true;
  }

  #shownChild(id) {
    const children = this.#children.get(id);
    if (children.length === 0) return null;
    return this.#chosen.get(id) ?? children.at(-1);
  }
}

/** A node of a file from anywhere, with what it lacks; throws where it is none. */
export function readNode(raw) {
  if (raw === null || typeof raw !== "object") throw new Error(words.files.notObject);
  const { id, parent = null, role, content } = raw;
  if (typeof id !== "string" || id === "" || id.length > 64) throw new Error(words.files.noId);
  if (parent !== null && typeof parent !== "string") throw new Error(words.files.noParent(id));
  if (!ROLES.includes(role)) throw new Error(words.files.noRole(id, ROLES.join(", ")));
  if (typeof content !== "string") throw new Error(words.files.noText(id));
  const node = { id, parent, role, content, created: Number.isFinite(raw.created) ? raw.created : 0 };
  if (role === "user") return { ...node, attachments: listOf(raw.attachments, isAttachment) };
  if (role === "tool") return { ...node, toolCallId: String(raw.toolCallId ?? "") };
  return {
    ...node,
    reasoning: typeof raw.reasoning === "string" ? raw.reasoning : "",
    toolCalls: listOf(raw.toolCalls, isCall),
    model: typeof raw.model === "string" ? raw.model : null,
    parameters: isObject(raw.parameters) ? raw.parameters : {},
    seed: Number.isSafeInteger(raw.seed) ? raw.seed : null,
    transport: typeof raw.transport === "string" ? raw.transport : null,
    promptTokens: Array.isArray(raw.promptTokens) ? raw.promptTokens.filter(Number.isSafeInteger) : null,
    events: listOf(raw.events, isEvent),
    usage: isObject(raw.usage) ? raw.usage : null,
    metrics: isObject(raw.metrics) ? raw.metrics : null,
    figures: listOf(raw.figures, isFigure),
    finish: typeof raw.finish === "string" ? raw.finish : "cut",
    error: typeof raw.error === "string" ? raw.error : null,
    stream: null, // a stream belongs to the page that began it
    measured: isMeasured(raw.measured) ? raw.measured : null,
  };
}

/** A new assistant's node, about to be written. */
export function makeAnswer({ id, parent, model, parameters, transport, created }) {
  return {
    ...readNode({ id, parent, role: "assistant", content: "", created }),
    model,
    parameters,
    seed: parameters.seed ?? null,
    transport,
    finish: null,
  };
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
/** Whether a value is a file of a message. */
export const isAttachment = (value) => isObject(value) && typeof value.name === "string" && (value.url === undefined ? typeof value.text === "string" : isPictureUrl(value.url));
const isCall = (value) => isObject(value) && ["id", "name", "arguments"].every((key) => typeof value[key] === "string");
const isEvent = (value) => isObject(value) && (value.at === null || Number.isFinite(value.at)) && typeof value.text === "string";
const isMeasured = (value) =>
  isObject(value) && [value.numTokens, value.numTimed].every(Number.isSafeInteger) &&
  (value.milliseconds === null || Number.isFinite(value.milliseconds));
const listOf = (value, isEntry) => (Array.isArray(value) ? value.filter(isEntry) : []);
