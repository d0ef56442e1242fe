/**
 * The parameters that have a control of their own, in the order in which they are shown. What each does, and its
 * limits, the server says itself in its OpenAPI document; here stand its kind, and the value that asks for nothing.
 * `isChat` ones go with chats alone.
 */

const number = (name, none, step, fields) => ({ name, kind: "number", none, step, ...fields });
const flag = (name, fields) => ({ name, kind: "flag", none: false, ...fields });

export const GROUPS = [
  { title: "Cuts", entries: [
    number("top_k", 0, 1), number("min_p", 0, 0.01), number("typical_p", 1, 0.05), number("top_n_sigma", 0, 0.1),
    number("xtc_probability", 0, 0.05), number("xtc_threshold", 0.1, 0.05),
  ] },
  { title: "Repetition", entries: [
    number("repetition_penalty", 1, 0.05), number("presence_penalty", 0, 0.1), number("frequency_penalty", 0, 0.1),
    number("dry_multiplier", 0, 0.1), number("dry_base", 1.75, 0.05), number("dry_allowed_length", 2, 1),
    number("dry_penalty_last_n", -1, 1), { name: "dry_sequence_breakers", kind: "texts" },
  ] },
  { title: "The end of an answer", entries: [
    { name: "stop", kind: "texts" }, flag("include_stop_str_in_output"), { name: "stop_token_ids", kind: "ids" },
    number("min_tokens", 0, 1), flag("ignore_eos"), number("timeout", null, 1),
  ] },
  { title: "Tokens", entries: [
    { name: "logit_bias", kind: "bias" }, { name: "bad_words", kind: "texts" }, { name: "allowed_token_ids", kind: "ids" },
    flag("logprobs", { isChat: true }), number("top_logprobs", 0, 1, { isChat: true }),
  ] },
  { title: "The model and its prompt", entries: [
    { name: "reasoning_effort", kind: "choice", isChat: true,
      choices: ["none", "minimal", "low", "medium", "high", "xhigh", "max"] },
    { name: "include_reasoning", kind: "flag", none: true, isChat: true }, flag("parse_special", { isChat: true }),
    { name: "chat_template_kwargs", kind: "json", isChat: true }, number("truncate_prompt_tokens", null, 1),
  ] },
  { title: "The server", entries: [
    number("priority", 0, 1), { name: "cache_salt", kind: "text" }, number("stream_interval", 1, 1), flag("include_metrics"),
  ] },
];

const ENTRIES = new Map(GROUPS.flatMap(({ entries }) => entries).map((entry) => [entry.name, entry]));

/**
 * The value of a control's text, or of a stored value. A number that is written is sent, also where it is the server's
 * default, because the model may recommend another one.
 *
 * @returns {{value: *, error: string|null}} a value of undefined asks for nothing
 */
export function readValue(name, raw) {
  const entry = ENTRIES.get(name);
  if (entry === undefined) return { value: undefined, error: `${name} is not known` };
  try {
    const value = READERS[entry.kind](raw, entry);
    return { value: entry.kind !== "number" && value === entry.none ? undefined : value, error: null };
  } catch (error) {
    return { value: undefined, error: error.message };
  }
}

/** A value as the text of its control. */
export function writeValue(name, value) {
  if (value === undefined) return "";
  const { kind } = ENTRIES.get(name);
  if (kind === "texts") return value.map((text) => JSON.stringify(text).slice(1, -1)).join("\n");
  if (kind === "ids") return value.join(", ");
  if (kind === "bias") return Object.entries(value).map(([id, bias]) => `${id}: ${bias}`).join("\n");
  if (kind === "json") return JSON.stringify(value);
  return String(value);
}

/** Of any object the parameters that are known and valid, those left out that ask for nothing. */
export function readParameters(raw) {
  const read = {};
  for (const [name, value] of Object.entries(Object(raw))) {
    const { value: known } = ENTRIES.has(name) ? readValue(name, typeof value === "boolean" ? value : writeSafely(name, value)) : {};
    if (known !== undefined) read[name] = known;
  }
  return read;
}

/** The parameters that a chat, or a completion, is sent with. */
export function sentParameters(values, isChat) {
  const sent = {};
  for (const [name, value] of Object.entries(values)) if (isChat || !ENTRIES.get(name).isChat) sent[name] = value;
  if (sent.top_logprobs !== undefined) sent.logprobs = true;
  return sent;
}

/** What the OpenAPI document says of each parameter: `{note, minimum, above, maximum, isWhole}` by name. */
export function describeParameters(document) {
  const properties = document?.components?.schemas?.ChatCompletionRequest?.properties ?? {};
  const described = {};
  for (const name of ENTRIES.keys()) {
    const property = properties[name];
    if (property === undefined) continue;
    const limits = (property.anyOf ?? [property]).find(({ type }) => type !== "null") ?? {};
    described[name] = {
      note: (property.description ?? "").replaceAll("`", ""), // CommonMark
      minimum: limits.minimum,
      above: limits.exclusiveMinimum,
      maximum: limits.maximum,
      isWhole: limits.type === "integer",
    };
  }
  return described;
}

function writeSafely(name, value) {
  try {
    return writeValue(name, value);
  } catch {
    return ""; // of another kind than it should be
  }
}

const READERS = {
  number(raw) {
    const text = String(raw).trim();
    if (text === "") return undefined;
    if (!Number.isFinite(Number(text))) throw new Error("This is not a number.");
    return Number(text);
  },
  flag: (raw) => raw === true || raw === "true",
  text: (raw) => (raw === "" ? undefined : raw),
  choice: (raw, { choices }) => (choices.includes(raw) ? raw : undefined),
  texts(raw) {
    const lines = raw.split("\n").filter((line) => line !== "");
    return lines.length === 0 ? undefined : lines.map(unescape);
  },
  ids(raw) {
    const words = raw.split(/[\s,]+/).filter((word) => word !== "");
    if (words.some((word) => !/^\d+$/.test(word))) throw new Error("Token ids are numbers, with commas between them.");
    return words.length === 0 ? undefined : words.map(Number);
  },
  bias(raw) {
    const lines = raw.split(/[\n,]/).map((line) => line.trim()).filter((line) => line !== "");
    const pairs = lines.map((line) => /^(\d+)\s*[:=]\s*(-?\d+(?:\.\d+)?)$/.exec(line));
    if (pairs.includes(null)) throw new Error("Each line is a token id, a colon and a number, such as 1234: -5.");
    return pairs.length === 0 ? undefined : Object.fromEntries(pairs.map(([, id, bias]) => [id, Number(bias)]));
  },
  json(raw) {
    if (raw.trim() === "") return undefined;
    let value;
    try {
      value = JSON.parse(raw);
    } catch {
      throw new Error("This is not JSON.");
    }
    if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("This is not a JSON object.");
    return value;
  },
};

/** `\n` and the like, as in JSON; what is no escape stays as it is. */
function unescape(line) {
  try {
    return JSON.parse(`"${line.replace(/(^|[^\\])((?:\\\\)*)"/g, '$1$2\\"')}"`);
  } catch {
    return line;
  }
}
