/** One column of the workbench: its own settings, its answers as branches, and the view of the one that is shown. */

import { Generation } from "../answer/generation.js";
import { promptTokens } from "../answer/prompt_tokens.js";
import { withLength } from "../answer/room.js";
import { make } from "../page/dom.js";
import { words } from "../words/words.js";
import { addChunk, makeAnswer } from "./answer.js";
import { TokenFlow } from "./token_flow.js";
import { describeLatency, summary } from "./latency.js";

export const TRANSPORTS = { sse: "SSE", websocket: "WebSocket" };

export class Column {
  element = make("section", "column");
  flow;
  answers = []; // branches, the first answer first
  #shownAt = 0;
  #deps;
  #generation = null;
  #model;
  #wanted = ""; // the model that was chosen, while the server has not told of any
  #tabs = make("div", "branches chips");
  #prompt = make("div", "prompt-tokens");
  #tokens = make("div", "tokens");
  #figures = make("p", "figures");
  #error = make("p", "error");
  #overrides = make("div", "overrides");
  canvas = make("canvas", "strip");

  /**
   * @param {number} number from 1
   * @param {{serverOf: (origin: string) => import("../transport/server.js").Server, peers: string[], onSelect: (column: Column, at: number|null, isKept: boolean) => void,
   *          onChange: () => void, models: () => string[], transport: () => string, colouring: string}} deps `transport` names
   *   that of the settings
   */
  constructor(number, deps) {
    this.#deps = deps;
    this.element.setAttribute("aria-label", words.tokens.answer(number));
    this.#tokens.tabIndex = 0;
    this.#tokens.setAttribute("role", "group");
    this.#tokens.setAttribute("aria-label", words.tokens.keys);
    this.flow = new TokenFlow(this.#tokens, (at, isKept) => deps.onSelect(this, at, isKept), deps.colouring);
    this.#error.hidden = true;
    this.#error.setAttribute("role", "alert");
    this.canvas.setAttribute("role", "img");
    this.#tabs.setAttribute("role", "group");
    this.#tabs.setAttribute("aria-label", words.tokens.branches);
    this.element.append(this.#overrides, this.#tabs, this.#prompt, this.#tokens, this.canvas, this.#figures, this.#error);
    for (const [name, label, step] of [["temperature", words.tokens.temperature, "0.05"], ["seed", words.tokens.seed, "1"]]) {
      const field = make("input");
      field.type = "number";
      field.step = step;
      field.min = "0";
      field.dataset.name = name;
      this.#overrides.append(labelled(label, field));
    }
    const others = make("input", "others");
    others.dataset.name = "parameters";
    others.placeholder = '{"top_k": 40}';
    others.spellcheck = false;
    others.addEventListener("input", () => others.setCustomValidity(readObject(others.value) === null ? words.tokens.notObject : ""));
    this.#overrides.append(
      labelled(words.tokens.others, others),
      labelled(words.tokens.transport, choice("transport", [["", words.tokens.asInSettings], ...Object.entries(TRANSPORTS)])),
    );
    if (deps.peers.length > 0) this.#addServers(deps);
    this.#model = labelled(words.tokens.model, choice("model", []));
    this.#overrides.append(this.#model);
    this.offerModels(deps.models());
  }

  /** Offers the server's models where it has several. */
  offerModels(models) {
    const select = this.#model.querySelector("select");
    const wanted = select.value || this.#wanted;
    select.replaceChildren(new Option(words.tokens.asInSettings, ""), ...models.map((name) => new Option(name, name)));
    select.value = models.includes(wanted) ? wanted : "";
    this.#wanted = models.length === 0 ? wanted : "";
    this.#model.hidden = models.length < 2;
  }

  /** A choice of servers, and a field for the key of another one, which is kept for this tab and sent to it alone. */
  #addServers({ peers, serverOf }) {
    const server = choice("server", [["", words.tokens.thisServer], ...peers.map((url) => [url, url.replace(/^https?:\/\//, "")])]);
    const key = make("input");
    Object.assign(key, { type: "password", autocomplete: "off" });
    const keyLabel = labelled(words.tokens.itsKey, key);
    keyLabel.hidden = true;
    server.addEventListener("change", () => {
      keyLabel.hidden = server.value === "";
      key.value = serverOf(server.value).key.value;
    });
    key.addEventListener("change", () => serverOf(server.value).changeKey(key.value));
    this.#overrides.append(labelled(words.tokens.server, server), keyLabel);
  }

  /** What this column changes of the shared parameters; what is empty stays as it is. */
  get settings() {
    return Object.fromEntries([...this.#overrides.querySelectorAll("[data-name]")].map((field) => [field.dataset.name, field.value]));
  }

  set settings(settings) {
    for (const field of this.#overrides.querySelectorAll("[data-name]")) {
      if (typeof settings[field.dataset.name] === "string") field.value = settings[field.dataset.name];
    }
    if (typeof settings.model === "string") this.#wanted = settings.model;
    this.offerModels(this.#deps.models());
  }

  get answer() {
    return this.answers[this.#shownAt] ?? null;
  }

  /** The seed of its first answer, as the text of its field. */
  get seed() {
    return String(this.answers[0]?.task.seed ?? "");
  }

  get isRunning() {
    return this.#generation !== null;
  }

  stop() {
    this.#generation?.stop();
  }

  clear() {
    this.stop();
    this.answers = [];
    this.#shownAt = 0;
    this.#showTabs();
  }

  /** Shows answers that came elsewhere, or were here before. */
  open(answers) {
    this.clear();
    this.answers = answers;
    this.show(answers.length - 1);
  }

  /** Takes away all that this column changes. */
  reset() {
    for (const field of this.#overrides.querySelectorAll("[data-name]")) field.value = "";
    this.#wanted = "";
  }

  /** Whether what is written into its fields can be sent; otherwise the first one that cannot says why. */
  check() {
    return [...this.#overrides.querySelectorAll("input")].every((field) => field.reportValidity());
  }

  /** The task with this column's changes. */
  taskOf(task) {
    const { temperature, seed, parameters, model, server } = this.settings;
    const { model: shared, ...rest } = task;
    return {
      ...rest,
      ...(shared === undefined || server ? {} : { model: shared }), // another server has models of its own
      ...(temperature === "" ? {} : { temperature: Number(temperature) }),
      ...(seed === "" ? {} : { seed: Number(seed) }),
      ...(model === "" || server ? {} : { model }),
      ...readObject(parameters),
    };
  }

  /** Streams an answer into a new branch. @returns {Promise<import("./answer.js").Answer>} */
  async run(task, given = [], label = "", server = this.#deps.serverOf(this.settings.server)) {
    this.stop();
    const transport = this.settings.transport || this.#deps.transport();
    const answer = makeAnswer(task, transport, given);
    Object.assign(answer, { label, server });
    this.answers.push(answer);
    this.show(this.answers.length - 1);
    const generation = (this.#generation = new Generation());
    answer.task = await withLength(task, server.fetch);
    const open = (signal) => server.transports[transport].stream(answer.task, { signal });
    const { finish, error } = await generation.run(open, {
      onChunk: (chunk, at) => {
        addChunk(answer, chunk, at);
        if (this.answer === answer) this.flow.update();
      },
      onFigures: () => {
        this.#showFigures();
        this.#deps.onChange();
      },
      onWaiting: (text) => {
        answer.waiting = text;
        this.#showFigures();
      },
    });
    answer.error = error?.message ?? null;
    answer.finish = finish;
    if (this.#generation === generation) this.#generation = null;
    this.#showFigures();
    this.#showPrompt(answer);
    this.#deps.onChange();
    return answer;
  }

  show(at) {
    this.#shownAt = at;
    this.#showTabs();
    this.flow.show(this.answer);
    this.#showFigures();
    this.#showPrompt(this.answer);
    this.#deps.onChange();
  }

  /** What is said of an answer has changed. */
  tellNote() {
    this.#showFigures();
    this.#deps.onChange();
  }

  #showTabs() {
    this.#tabs.hidden = this.answers.length < 2;
    this.#tabs.replaceChildren(...this.answers.map((answer, at) => {
      const button = make("button", "", at === 0 ? words.tokens.first : answer.label);
      button.setAttribute("aria-pressed", String(at === this.#shownAt));
      button.addEventListener("click", () => this.show(at));
      return button;
    }));
  }

  #showFigures() {
    const { answer } = this;
    const own = answer.tokens.slice(answer.numGiven);
    const parts = answer.waiting ? [answer.waiting] : [...describeLatency(summary(own)), words.tokens.numTokens(own.length)];
    if (answer.numCached !== null) parts.push(words.tokens.cached(answer.numCached, answer.promptTokens?.length ?? "?"));
    if (answer.note) parts.push(answer.note);
    this.#figures.replaceChildren(...parts.map((part) => make("span", "figure", part)));
    this.canvas.setAttribute("aria-label", words.tokens.gaps(parts.join(", ")));
    this.#error.hidden = answer.error === null;
    this.#error.textContent = answer.error ?? "";
  }

  /** The prompt's tokens; those that came from the cache are hatched. Its texts are asked for once. */
  async #showPrompt(answer) {
    this.#prompt.hidden = answer.promptTokens === null;
    if (answer.promptTokens === null) return this.#prompt.replaceChildren();
    const numPrompt = answer.promptTokens.length - answer.numGiven;
    const ids = answer.promptTokens.slice(0, numPrompt);
    answer.promptTexts ??= await this.#textsOf(ids, answer.task.model, answer.server ?? this.#deps.serverOf());
    if (this.answer !== answer) return undefined;
    return this.#prompt.replaceChildren(...promptTokens(ids, answer.promptTexts, answer.numCached ?? 0));
  }

  async #textsOf(tokens, model, server) {
    try {
      const response = await server.fetch("/detokenize", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ tokens, return_token_texts: true, ...(model === undefined ? {} : { model }) }),
      });
      return response.ok ? ((await response.json()).token_texts ?? null) : null;
    } catch {
      return null; // the ids stand in their place
    }
  }
}

/** The object that a text of JSON stands for, an empty one for an empty text; null where it stands for none. */
function readObject(text) {
  if (text.trim() === "") return {};
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

function labelled(text, field) {
  const label = make("label", "", text);
  label.append(field);
  return label;
}

function choice(name, options) {
  const select = make("select");
  select.dataset.name = name;
  select.append(...options.map(([value, text]) => new Option(text, value)));
  return select;
}
