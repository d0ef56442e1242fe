/** The reader's settings: checked, and kept between visits where the browser allows it. */

const KEY = "eagre.playground";

const VERSION = 2; // settings without a version are of a page that sent these values where nobody had chosen any
const UNCHOSEN = { temperature: 0.8, topP: 0.95, maxTokens: 256 };

/** A sampling parameter that is null has not been chosen: it is not sent, and the model's own recommendation holds. */
export const DEFAULTS = Object.freeze({
  version: VERSION,
  transport: "sse",
  model: "", // empty: the server's first
  temperature: null,
  topP: null,
  maxTokens: null, // null: until the answer is done
  seed: null, // null: one is drawn
  system: "You are a helpful assistant.",
  extra: Object.freeze({}), // any other parameters by their wire names
  toolsText: "", // as the reader wrote them; what is valid of them is sent
  toolChoice: "auto",
  schemaText: "",
});

/** Any value at all to valid settings: what is missing or out of range becomes the default. */
export function normalise(raw) {
  const given = raw !== null && typeof raw === "object" ? { ...raw } : {};
  if (given.version === undefined) {
    for (const [name, value] of Object.entries(UNCHOSEN)) if (given[name] === value) delete given[name];
  }
  return {
    version: VERSION,
    transport: oneOf(["sse", "websocket", "responses"], given.transport, DEFAULTS.transport),
    model: textOf(given.model, DEFAULTS.model),
    temperature: within(0, 2, given.temperature, DEFAULTS.temperature),
    topP: within(0.01, 1, given.topP, DEFAULTS.topP),
    maxTokens: Number.isSafeInteger(given.maxTokens) && given.maxTokens > 0 ? given.maxTokens : DEFAULTS.maxTokens,
    seed: Number.isSafeInteger(given.seed) ? given.seed : DEFAULTS.seed,
    system: textOf(given.system, DEFAULTS.system),
    extra: given.extra !== null && typeof given.extra === "object" ? { ...given.extra } : {},
    toolsText: textOf(given.toolsText, DEFAULTS.toolsText),
    toolChoice: oneOf(["auto", "required", "none"], given.toolChoice, DEFAULTS.toolChoice),
    schemaText: textOf(given.schemaText, DEFAULTS.schemaText),
  };
}

/** The settings as request parameters: those that were chosen. */
export function samplingOf({ temperature, topP, maxTokens, seed }) {
  const sampling = { temperature, top_p: topP, max_tokens: maxTokens, seed };
  return Object.fromEntries(Object.entries(sampling).filter(([, value]) => value !== null));
}

export function loadSettings(storage) {
  try {
    return normalise(JSON.parse(storage().getItem(KEY)));
  } catch {
    return normalise(null); // no storage, a forbidden one, or not our JSON
  }
}

export function saveSettings(storage, settings) {
  try {
    storage().setItem(KEY, JSON.stringify(settings));
  } catch {
    // Private windows and full disks refuse; the settings then last as long as the page.
  }
}

function textOf(value, fallback) {
  return typeof value === "string" ? value : fallback;
}

function oneOf(values, value, fallback) {
  return values.includes(value) ? value : fallback;
}

function within(low, high, value, fallback) {
  return typeof value === "number" && value >= low && value <= high ? value : fallback;
}
