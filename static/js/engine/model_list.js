/**
 * The server's models: the state of each, how far one that is loaded is, and what it takes. Everybody may bring them into
 * memory; who has the administrator's key also puts them to sleep, pauses and resumes them here.
 */

import { make } from "../page/dom.js";
import { ServerError } from "../transport/errors.js";
import { bytes, memoryOf } from "../transport/server_state.js";
import { words } from "../words/words.js";
import { titledTable } from "./titled_table.js";

const INTERVAL = 2000; // milliseconds
const SOON = 500; // while something is being loaded

// What can be asked of a model in each state, by the route and the words of its button.
const LOAD = "load"; // the only one that wants no administrator's key
const STEPS = /^(.*), (\d+) of (\d+)$/; // a stage of loading that says how far it is
const CALLS = {
  unloaded: [["wake", "load"]],
  failed: [["wake", "load"]],
  ready: [["sleep", "sleep"], ["pause", "pause"]],
  paused: [["resume", "resume"], ["sleep", "sleep"]],
  asleep: [["wake", "wake"]],
  loading: [],
};

export class ModelList {
  element = make("section");
  #admin;
  #body = make("tbody");
  #choice;
  #fetch;
  #keyNote = make("p", "note", words.models.keyNeeded);
  #isShown = false;
  #onChange;
  #tell;
  #text = "";
  #timer = null;

  /**
   * @param {{fetch: typeof fetch, admin: import("./admin.js").Admin, tell: (text: string, isTrouble?: boolean) => void,
   *   onChange: () => void}} deps `tell` says how a call went, `onChange` hears that a model has another state
   * @param {{chosen: () => string|undefined, choose: (model: string) => void}|null} choice which model answers; null for a
   *   list in which none is chosen
   */
  constructor({ fetch, admin, tell, onChange }, choice = null) {
    this.#fetch = fetch;
    this.#admin = admin;
    this.#tell = tell;
    this.#onChange = onChange;
    this.#choice = choice;
    const columns = [["model", ""], ["state", ""], ["memory", "number wide-cell"], ["size", "wide-cell"], ["context", "wide-cell"], ["actions", "actions-column"]]
      .map(([name, className]) => ({ word: words.models.columns[name], className }));
    const place = choice === null ? "engine" : "picker";
    this.element.append(...titledTable("models", words.models.title, columns, this.#body, place), this.#keyNote);
    this.element.querySelector("h2").tabIndex = -1;
    this.#keyNote.hidden = admin.key.value !== "";
  }

  focus() {
    this.element.querySelector("h2").focus({ preventScroll: true });
  }

  set isShown(isShown) {
    this.#isShown = isShown;
    this.follow();
  }

  /** Asks now, and again while it is shown. */
  follow() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#isShown) this.#ask();
  }

  /** Brings a model into memory. */
  load(model) {
    return this.#call(model, "wake", words.models.calls.load);
  }

  async #ask() {
    clearTimeout(this.#timer);
    const timer = (this.#timer = setTimeout(() => this.#ask(), INTERVAL));
    let models;
    try {
      const response = await this.#fetch("/v1/models", { cache: "no-store" });
      if (!response.ok) return;
      models = (await response.json()).data ?? [];
    } catch {
      return; // the stream of the engine says what is wrong
    }
    if (timer !== this.#timer) return;
    this.#show(models);
    if (!models.some(({ state }) => state === "loading")) return;
    clearTimeout(timer);
    this.#timer = setTimeout(() => this.#ask(), SOON);
  }

  #show(models) {
    const canCall = this.#admin.key.value !== "";
    this.#keyNote.hidden = canCall;
    const text = JSON.stringify([models, canCall, this.#choice?.chosen()]);
    if (text === this.#text) return; // nobody's focus is taken away for nothing
    this.#text = text;
    const { model: focused, call } = (this.#body.contains(document.activeElement) ? document.activeElement : this.#body).dataset;
    this.#body.replaceChildren(...models.map((model) => this.#row(model, canCall)));
    const same = [...this.#body.querySelectorAll("button")].filter(({ dataset }) => dataset.model === focused);
    (same.find(({ dataset }) => dataset.call === call) ?? same[0])?.focus();
    this.#onChange();
  }

  #row(model, canCall) {
    const { id, state, loading_stage: stage, error, num_parameters: count, quantization, dtype, max_model_len: context } = model;
    const row = make("tr");
    const name = make("th", "", this.#choice === null ? id : "");
    name.scope = "row";
    if (this.#choice !== null) name.append(this.#chooser(model));
    const shownState = make("td", error === undefined ? "" : "invalid", stage === undefined ? (words.models.states[state] ?? state) : words.models.stage(stage));
    if (error !== undefined) shownState.append(`: ${error}`);
    if (stage !== undefined) shownState.append(...progressOf(stage, id));
    const memory = make("td", "number wide-cell", memoryOf(model));
    if (model.weight_bytes !== undefined) memory.title = words.models.memory(bytes(model.weight_bytes), bytes(model.cache_bytes));
    const size = count === undefined ? "" : [words.models.parameters(count), quantization ?? dtype].join(", ");
    const actions = make("td", "chips actions-column");
    const calls = (CALLS[state] ?? []).map(([route, word]) => (route === "wake" && !canCall ? [LOAD, word] : [route, word]));
    actions.append(...calls.filter(([route]) => canCall || route === LOAD).map(([route, word]) => this.#button(id, route, word)));
    row.append(
      name, shownState, memory, make("td", "wide-cell", size),
      make("td", "wide-cell", context === undefined ? "" : words.models.tokens(context)), actions,
    );
    return row;
  }

  /** A button that chooses a model; one that does not generate has none. */
  #chooser({ id, task }) {
    if (task !== undefined) return make("span", "", id);
    const button = make("button", "choose", id);
    Object.assign(button.dataset, { model: id, call: "choose" });
    button.setAttribute("aria-pressed", String(id === this.#choice.chosen()));
    button.addEventListener("click", () => this.#choice.choose(id));
    return button;
  }

  #button(model, route, word) {
    const button = make("button", "", words.models.calls[word]);
    button.setAttribute("aria-label", words.models.forModel(words.models.calls[word], model));
    Object.assign(button.dataset, { model, call: route });
    button.addEventListener("click", () => this.#call(model, route, words.models.calls[word]));
    return button;
  }

  async #call(model, route, word) {
    this.#tell(words.engine.calling(words.models.forModel(word, model)));
    // A model that is loaded answers when it is there; until then its stage is shown.
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.follow(), SOON);
    try {
      const { state } = route === LOAD
        ? await this.#loadAsClient(model)
        : await this.#admin.call(route, route === "sleep" ? { model, drop_weights: true } : { model });
      this.#tell(words.models.isNow(model, words.models.states[state] ?? state));
    } catch (error) {
      this.#tell(error.message, true);
    }
    this.follow();
  }

  async #loadAsClient(model) {
    const response = await this.#fetch("/models/load", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ model }),
    });
    if (!response.ok) throw await ServerError.fromResponse(response);
    return { state: "ready" };
  }
}

/** A bar, where the stage of a model that is being loaded says how far it is. */
function progressOf(stage, model) {
  const [, , done, total] = STEPS.exec(stage) ?? [];
  if (!(total > 0)) return [];
  const bar = make("progress");
  bar.setAttribute("aria-label", words.models.forModel(words.models.states.loading, model));
  Object.assign(bar, { max: Number(total), value: Number(done) });
  return [bar];
}
