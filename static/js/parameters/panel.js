/**
 * The settings of requests: the first controls, presets, every other parameter, tools, and a schema for the answer.
 * What is not valid is told at its field, and `problem` says what keeps a request from being sent.
 */

import { byId, make } from "../page/dom.js";
import { words } from "../words/words.js";
import { GROUPS, describeParameters, readParameters, readValue, writeValue } from "./catalogue.js";
import { describeRange, limitError } from "./limits.js";
import { PresetPicker } from "./preset_picker.js";
import { SamplingControls } from "./sampling_controls.js";
import { StructureFields } from "./structure_fields.js";

export class ParameterPanel {
  #controls;
  #fetch;
  #onChange;
  #reveal;
  #fields = new Map(); // name -> {field, error, entry, note, limits}
  #recommended = {}; // by the wire's names
  #sampling;
  #structure;
  #isReady = false;

  /**
   * @param {import("../page/controls.js").Controls} controls
   * @param {import("./presets.js").Presets} presets
   * @param {{fetch: typeof fetch, onChange: () => void, reveal: () => void}} deps `onChange` is called when `problem` may
   *   be another one, `reveal` shows the settings where they are folded away
   */
  constructor(controls, presets, { fetch, onChange, reveal }) {
    this.#controls = controls;
    this.#fetch = fetch;
    this.#onChange = onChange;
    this.#reveal = reveal;
    const changed = () => this.#changed();
    this.#sampling = new SamplingControls(controls, changed);
    this.#structure = new StructureFields(controls, changed);
    this.#makeFields();
    new PresetPicker(presets, { settings: () => controls.settings, apply: (values) => this.#apply(values) });
    byId("more-parameters").addEventListener("toggle", () => this.#describe(), { once: true });
    this.#isReady = true;
  }

  /** The model whose recommendations and limits hold. @param {object|null} model an entry of `/v1/models` */
  set model(model) {
    this.#sampling.model = model;
    const recommended = (this.#recommended = model?.sampling_defaults ?? {});
    for (const [name, { field, entry }] of this.#fields) {
      if (entry.kind === "number") field.placeholder = String(recommended[name] ?? entry.none ?? words.parameters.none);
    }
  }

  /** Whether what is shown is a chat; tools go with chats alone. */
  set isChat(isChat) {
    this.#structure.isChat = isChat;
  }

  /**
   * What keeps a request from being sent, or null.
   *
   * @param {boolean} isChat @returns {{text: string, show: () => void}|null} `show` leads to the field
   */
  problem(isChat) {
    const wrong = this.#sampling.problem ?? this.#fieldProblem(isChat) ?? this.#structure.problem(isChat);
    if (wrong === null) return null;
    return { text: wrong.text, show: () => this.#show(wrong) };
  }

  /**
   * What is set otherwise than the model recommends.
   *
   * @param {boolean} isChat @returns {import("./departures.js").Departure[]}
   */
  departures(isChat) {
    const others = Object.entries(this.#controls.settings.extra).filter(([name, value]) => {
      const { entry } = this.#fields.get(name);
      return (isChat || !entry.isChat) && value !== (this.#recommended[name] ?? entry.none);
    });
    return [...this.#sampling.departures, ...others.map(([name, value]) => ({ name, text: describe(name, value) }))];
  }

  /** Leads to the control of a setting. */
  show(name) {
    this.#show({ field: this.#sampling.fieldOf(name) ?? this.#fields.get(name).field });
  }

  /** Takes settings back: what the model recommends holds again. @param {string[]} names */
  reset(names) {
    const { extra } = this.#controls.settings;
    const isOther = (name) => Object.hasOwn(extra, name);
    const kept = Object.entries(extra).filter(([name]) => !names.includes(name));
    const unset = names.filter((name) => !isOther(name)).map((name) => [name, null]);
    this.#apply({ ...Object.fromEntries(unset), extra: Object.fromEntries(kept) });
  }

  /**
   * Takes over the parameters of a request; those that it does not name are at their defaults.
   *
   * @param {object} parameters by their wire names
   * @param {boolean} isChat whether it is a chat; a completion says nothing of tools and schemas, which stay then
   */
  restore(parameters, isChat) {
    this.#controls.change({ extra: readParameters(parameters) });
    this.#sampling.restore(parameters);
    if (isChat) this.#structure.restore(parameters);
    this.#showValues();
  }

  #show({ field, dialog }) {
    if (dialog !== undefined) dialog.showModal();
    else this.#reveal();
    field.closest("details")?.setAttribute("open", "");
    field.focus();
  }

  #apply(values) {
    this.#controls.change(values);
    this.#sampling.show();
    this.#showValues();
  }

  #changed() {
    if (this.#isReady) this.#onChange();
  }

  #fieldProblem(isChat) {
    for (const { field, error, entry } of this.#fields.values()) {
      if (error.textContent !== "" && (isChat || !entry.isChat)) return { text: error.textContent, field };
    }
    return null;
  }

  #makeFields() {
    for (const { name, entries } of GROUPS) {
      const group = make("fieldset");
      group.append(make("legend", "", words.parameters.groups[name]), ...entries.map((entry) => this.#makeField(entry)));
      byId("parameters").append(group);
    }
    this.#showValues();
  }

  #makeField(entry) {
    const { name, kind } = entry;
    const field = make({ texts: "textarea", bias: "textarea", json: "textarea", choice: "select" }[kind] ?? "input");
    field.id = `parameter-${name}`;
    field.setAttribute("aria-describedby", `${field.id}-note`);
    if (kind === "flag") field.type = "checkbox";
    else if (kind === "number") Object.assign(field, { type: "number", step: "any", placeholder: String(entry.none ?? words.parameters.none) });
    else if (kind === "choice") field.append(new Option(words.parameters.byTheModel, ""), ...entry.choices.map((choice) => new Option(choice, choice)));
    else if (field.tagName === "TEXTAREA") Object.assign(field, { rows: 1, spellcheck: false });
    if (kind === "texts") field.placeholder = words.parameters.onePerLine;
    const label = make("label", "", titleOf(name));
    label.htmlFor = field.id;
    const note = make("p", "note");
    note.id = `${field.id}-note`;
    const error = make("p", "invalid");
    error.setAttribute("role", "alert");
    const setting = make("div", `setting ${kind}`);
    setting.append(label, field, note, error);
    this.#fields.set(name, { field, error, entry, note, limits: {} });
    field.addEventListener("input", () => this.#read(name));
    return setting;
  }

  #read(name) {
    const { field, entry } = this.#fields.get(name);
    const raw = entry.kind === "flag" ? field.checked : field.validity.badInput ? "?" : field.value;
    const { value, error } = readValue(name, raw);
    if (!this.#check(name, error)) return;
    const extra = { ...this.#controls.settings.extra };
    if (value === undefined) delete extra[name];
    else extra[name] = value;
    this.#controls.change({ extra });
    this.#showCount();
  }

  /** Tells at the field what is wrong with its value. */
  #check(name, reason = null) {
    const { field, error, entry, limits } = this.#fields.get(name);
    const isNumber = entry.kind === "number" && field.value !== "";
    error.textContent = reason ?? (isNumber ? limitError(titleOf(name), field.value, limits) : null) ?? "";
    field.setAttribute("aria-invalid", String(error.textContent !== ""));
    this.#changed();
    return error.textContent === "";
  }

  #showValues() {
    const { extra } = this.#controls.settings;
    for (const [name, { field, entry }] of this.#fields) {
      if (entry.kind === "flag") field.checked = extra[name] ?? entry.none;
      else field.value = writeValue(name, extra[name]);
      this.#check(name);
    }
    this.#showCount();
  }

  #showCount() {
    byId("parameters-count").textContent = words.parameters.count(Object.keys(this.#controls.settings.extra).length);
  }

  /** The server's own words and limits. */
  async #describe() {
    let document = null;
    try {
      document = await (await this.#fetch("/openapi.json")).json();
    } catch {
      return; // the names have to do
    }
    for (const [name, { note, ...limits }] of Object.entries(describeParameters(document))) {
      const described = this.#fields.get(name);
      const isNumber = described.entry.kind === "number";
      described.note.textContent = `${note}${isNumber ? words.parameters.range(describeRange(limits)) : ""}`;
      if (!isNumber) continue;
      described.limits = limits;
      this.#check(name);
    }
  }
}

/** A setting as it stands beside a message; of lists and objects the name alone. */
function describe(name, value) {
  const isPlain = ["number", "string"].includes(typeof value) || value === false;
  return isPlain ? `${titleOf(name)} ${value}` : titleOf(name);
}

function titleOf(name) {
  return name.replaceAll("_", " ");
}
