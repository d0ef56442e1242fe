/**
 * The third way: the Responses API over its WebSocket, one socket for each answer, because closing the socket is
 * how a response is stopped. It tells no token ids, and a stream does not survive its connection. It takes chats
 * only, and cannot continue a message.
 */

import { words } from "../words/words.js";
import { makeChunk } from "./chunk.js";
import { ConnectionLost, ServerError } from "./errors.js";

/** Parameters of the chat route that have no counterpart here, or another name, which `requestOf` writes. */
const NOT_SENT = new Set([
  "messages", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "response_format", "tools",
  "tool_choice", "reasoning_effort", "include_reasoning", "return_token_ids", "resumable", "stream", "stream_options",
]);

export class ResponsesTransport {
  #url;
  #protocols;
  #WebSocketClass;

  /** @param {{url: string, protocols?: () => string[], WebSocketClass?: typeof WebSocket}} options */
  constructor({ url, protocols = () => [], WebSocketClass = globalThis.WebSocket }) {
    this.#url = url;
    this.#protocols = protocols;
    this.#WebSocketClass = WebSocketClass;
  }

  /** @param {import("./transport.js").Task} task @returns {AsyncGenerator<import("./chunk.js").Chunk>} */
  async *stream(task, { signal } = {}) {
    if (signal?.aborted) {
      yield makeChunk({ finish: "abort" });
      return;
    }
    const socket = new this.#WebSocketClass(this.#url, this.#protocols());
    const arrived = [];
    let wake = () => undefined;
    let end = null; // {error} once nothing more will come
    const stop = (error = null) => {
      end ??= { error };
      wake();
    };
    let isOpen = false;
    socket.onopen = () => {
      isOpen = true;
      socket.send(JSON.stringify(requestOf(task)));
    };
    socket.onmessage = ({ data }) => {
      try {
        const event = JSON.parse(data);
        const error = errorOf(event);
        if (error !== null) return stop(error);
        const chunk = chunkOfEvent(event);
        arrived.push(chunk);
        if (chunk.finish !== null) stop();
      } catch {
        stop(new ConnectionLost(words.transport.notJson));
      }
      wake();
      return undefined;
    };
    socket.onclose = () => stop(new ConnectionLost(isOpen ? undefined : words.transport.unreachable));
    const onAbort = () => {
      if (end !== null) return;
      arrived.push(makeChunk({ finish: "abort" }));
      stop();
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      while (end === null || arrived.length > 0) {
        if (arrived.length === 0) await new Promise((resolve) => (wake = resolve));
        yield* arrived.splice(0);
      }
      if (end.error !== null) throw end.error;
    } finally {
      signal?.removeEventListener("abort", onAbort);
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }
}

/** The first message of the socket, from the parameters of a chat. */
export function requestOf(task) {
  const request = { type: "response.create", store: false, return_progress: true, input: task.messages.flatMap(itemsOf) };
  for (const [name, value] of Object.entries(task)) if (!NOT_SENT.has(name)) request[name] = value;
  const length = task.max_completion_tokens ?? task.max_tokens;
  if (length !== undefined) request.max_output_tokens = length;
  if (task.logprobs) {
    request.include = ["message.output_text.logprobs"];
    request.top_logprobs = task.top_logprobs ?? 0;
  }
  if (task.tools?.length > 0) request.tools = task.tools.map((tool) => ({ type: "function", ...tool.function }));
  if (typeof task.tool_choice === "string") request.tool_choice = task.tool_choice;
  else if (task.tool_choice) request.tool_choice = { type: "function", name: task.tool_choice.function.name };
  if (task.reasoning_effort) request.reasoning = { effort: task.reasoning_effort };
  const format = task.response_format;
  if (format) request.text = { format: { ...format.json_schema, type: format.type } };
  return request;
}

function itemsOf(message) {
  if (message.role === "tool") {
    return [{ type: "function_call_output", call_id: message.tool_call_id, output: message.content }];
  }
  const items = message.content ? [{ type: "message", role: message.role, content: contentOf(message.content) }] : [];
  for (const call of message.tool_calls ?? []) {
    const { name, arguments: argumentsText } = call.function;
    items.push({ type: "function_call", call_id: call.id, name, arguments: argumentsText });
  }
  return items;
}

function contentOf(content) {
  if (typeof content === "string") return content;
  return content.map((part) => (part.type === "image_url" ? { type: "input_image", image_url: part.image_url.url } : { type: "input_text", text: part.text }));
}

function errorOf(event) {
  if (event.type === "error") return new ServerError(event.error ?? event, event.status ?? 0);
  if (event.type === "response.failed") return new ServerError(event.response?.error);
  return null;
}

function chunkOfEvent(event) {
  const raw = event;
  switch (event.type) {
    case "response.output_text.delta":
      return makeChunk({ text: event.delta, logprobs: logprobsOf(event.logprobs), raw });
    case "response.reasoning_text.delta":
      return makeChunk({ reasoning: event.delta, raw });
    case "response.output_item.added":
      return makeChunk({ toolCalls: callsOf(event), raw });
    case "response.function_call_arguments.delta":
      return makeChunk({ toolCalls: [{ index: event.output_index, function: { arguments: event.delta } }], raw });
    case "response.in_progress":
      return makeChunk(event.prompt_progress ? { progress: event.prompt_progress, raw } : { raw });
    case "response.completed": {
      const hasCalls = event.response.output?.some(({ type }) => type === "function_call");
      return makeChunk({ finish: hasCalls ? "tool_calls" : "stop", usage: usageOf(event.response.usage), raw });
    }
    case "response.incomplete": {
      const isLong = event.response.incomplete_details?.reason === "max_output_tokens";
      return makeChunk({ finish: isLong ? "length" : "abort", usage: usageOf(event.response.usage), raw });
    }
    default:
      return makeChunk({ raw });
  }
}

/** Events number the items of the output, so calls behind a message begin above 0: the reader of pieces does not mind. */
function callsOf({ item, output_index: index }) {
  if (item?.type !== "function_call") return null;
  return [{ index, id: item.call_id, function: { name: item.name, arguments: "" } }];
}

function logprobsOf(logprobs) {
  return logprobs?.length > 0 ? { content: logprobs } : null;
}

function usageOf(usage) {
  if (!usage) return null;
  return {
    prompt_tokens: usage.input_tokens,
    completion_tokens: usage.output_tokens,
    total_tokens: usage.total_tokens,
    prompt_tokens_details: { cached_tokens: usage.input_tokens_details?.cached_tokens ?? 0 },
    completion_tokens_details: { reasoning_tokens: usage.output_tokens_details?.reasoning_tokens ?? 0 },
  };
}
