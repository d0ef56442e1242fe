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
 * What requests for an answer have brought, and how long that took; `milliseconds` is null where nobody knows.
 *
 * @typedef {{numTokens: number, numTimed: number, milliseconds: number|null}} Measured `numTimed` are the tokens after
 *   the first chunk of each request, and `milliseconds` the time in which they came
 * @typedef {{timeToFirstToken: number|null, numTokens: number, isResumed: boolean, earlier: Measured|null}} Before
 *   `earlier` is of requests that had ended before the one that is running now
 */

/**
 * What was measured of an answer that is gone on with: after a reload, or by another request for its continuation.
 *
 * @returns {Before|null} null for an answer that nobody has begun
 */
export function measuredOf({ stream, events, measured = null }) {
  if (stream === null && measured === null) return null;
  const numRecorded = events.reduce((sum, { ids, text, reasoning }) => sum + (ids?.length ?? (text + reasoning === "" ? 0 : 1)), 0);
  return {
    timeToFirstToken: events[0]?.at ?? null,
    numTokens: stream === null ? measured.numTokens : numRecorded,
    isResumed: stream !== null,
    earlier: measured,
  };
}

/** What an answer has that another request continues; of one that an older page has kept, the tokens alone are known. */
export function continuedFrom(node) {
  if (node.measured != null) return node.measured;
  const { numTokens } = measuredOf({ ...node, stream: {} });
  return { numTokens: node.usage?.completion_tokens ?? numTokens, numTimed: 0, milliseconds: null };
}

/** Ends the node, whose stream nobody needs to go on with; `measured` is kept for a continuation. */
export function end(node, { finish, error, figures, measured = null }) {
  node.finish = finish;
  node.error = error === null ? null : error.message;
  node.figures = figures;
  node.stream = null;
  node.measured = measured;
}
