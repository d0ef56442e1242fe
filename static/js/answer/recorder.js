/** Writes the chunks of an answer into its node of the tree, see `store/tree.js`. */

/**
 * @param {object} node an assistant's node
 * @param {import("../transport/chunk.js").Chunk} chunk
 * @param {number} at milliseconds since the request; NaN where nobody has measured them
 */
export function record(node, chunk, at) {
  node.content += chunk.text;
  node.reasoning += chunk.reasoning;
  for (const piece of chunk.toolCalls ?? []) addPiece(node.toolCalls, piece);
  if (chunk.promptTokenIds !== null && node.promptTokens === null) node.promptTokens = chunk.promptTokenIds;
  if (chunk.usage !== null) node.usage = chunk.usage;
  if (chunk.metrics !== null) node.metrics = chunk.metrics;
  // The place moves in the same breath as the text: whoever reads the node later asks for exactly what is missing.
  if (chunk.stream !== null) node.stream = { id: chunk.stream.id, place: chunk.stream.place ?? node.stream?.place ?? null };
  if (chunk.text === "" && chunk.reasoning === "" && chunk.tokenIds === null && chunk.logprobs === null) return;
  const { text, reasoning, tokenIds: ids, logprobs } = chunk;
  node.events.push({
    at: Number.isNaN(at) ? null : Math.round(at * 10) / 10, text, reasoning, ids,
    // A text, because a browser copies it in an eighth of the time when the event is kept.
    logprobs: logprobs === null ? null : JSON.stringify(logprobs),
  });
}

/** Calls come piece by piece: first the id and the name, then the arguments. Calls are told apart by their index. */
function addPiece(calls, piece) {
  let call = calls.find(({ index }) => index === piece.index);
  if (call === undefined) {
    call = { index: piece.index, id: piece.id ?? "", name: "", arguments: "" };
    calls.push(call);
  }
  call.id ||= piece.id ?? "";
  call.name += piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}

/**
 * What was measured of an answer before its page was loaded anew; null for an answer that has no stream yet.
 *
 * @returns {{timeToFirstToken: number|null, numTokens: number}|null}
 */
export function measuredOf({ stream, events }) {
  if (stream === null) return null;
  return {
    timeToFirstToken: events[0]?.at ?? null,
    numTokens: events.reduce((sum, { ids, text, reasoning }) => sum + (ids?.length ?? (text + reasoning === "" ? 0 : 1)), 0),
  };
}

/** Ends the node, whose stream nobody needs to go on with. */
export function end(node, { finish, error, figures }) {
  node.finish = finish;
  node.error = error === null ? null : error.message;
  node.figures = figures;
  node.stream = null;
}
