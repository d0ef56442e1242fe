/** The settings below the first ones: presets, every other parameter, tools, and a schema for the answer. */

import { announce, byId, make } from "../page/dom.js";
import { GROUPS, describeParameters, readParameters, readValue, writeValue } from "./catalogue.js";
import { TYPES, addTool, readSchema, readTools, schemaOfRows } from "./structure.js";

export class ParameterPanel {
  #controls;
  #presets;
  #fetch;
  #fields = new Map(); // name -> {field, error, entry}

  /**
   * @param {import("../page/controls.js").Controls} controls
   * @param {import("./presets.js").Presets} presets
   * @param {typeof fetch} fetch
   */
  constructor(controls, presets, fetch) {
    this.#controls = controls;
    this.#presets = presets;
    this.#fetch = fetch;
    this.#makeFields();
    this.#setUpPresets();
    this.#setUpText("tools", "toolsText", readTools, (value) => `${value.length} ${value.length === 1 ? "tool" : "tools"}`);
    this.#setUpText("schema", "schemaText", readSchema, () => "in use");
    this.#setUpRows("tools");
    this.#setUpRows("schema");
    byId("tool-choice").addEventListener("change", (event) => controls.change({ toolChoice: event.target.value }));
    this.#showTexts();
    byId("more-parameters").addEventListener("toggle", () => this.#describe(), { once: true });
  }

  /**
   * Takes over the parameters of a request; those that it does not name are at their defaults.
   *
   * @param {object} parameters by their wire names
   * @param {boolean} isChat whether it is a chat; a completion says nothing of tools and schemas, which stay then
   */
  restore({ tools, tool_choice: toolChoice, response_format: format, ...others }, isChat) {
    const changes = { extra: readParameters(others) };
    if (isChat) Object.assign(changes, { toolsText: textOf(tools), toolChoice, schemaText: textOf(format?.json_schema?.schema) });
    this.#controls.change(changes);
    this.#showValues();
    this.#showTexts();
  }

  #showTexts() {
    const { toolsText, schemaText, toolChoice } = this.#controls.settings;
    for (const [id, text] of [["tools-text", toolsText], ["schema-text", schemaText]]) {
      byId(id).value = text;
      byId(id).dispatchEvent(new Event("input"));
    }
    byId("tool-choice").value = toolChoice;
  }

  #makeFields() {
    for (const { title, entries } of GROUPS) {
      const group = make("fieldset");
      group.append(make("legend", "", title), ...entries.map((entry) => this.#makeField(entry)));
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
    else if (kind === "number") Object.assign(field, { type: "number", step: "any", placeholder: String(entry.none ?? "none") });
    else if (kind === "choice") field.append(new Option("as the model has it", ""), ...entry.choices.map((choice) => new Option(choice, choice)));
    else if (field.tagName === "TEXTAREA") Object.assign(field, { rows: 1, spellcheck: false });
    if (kind === "texts") field.placeholder = "one on each line";
    const label = make("label", "", name.replaceAll("_", " "));
    label.htmlFor = field.id;
    const note = make("p", "note");
    note.id = `${field.id}-note`;
    const error = make("p", "invalid");
    error.setAttribute("role", "alert");
    const setting = make("div", `setting ${kind}`);
    setting.append(label, field, note, error);
    this.#fields.set(name, { field, error, entry, note });
    field.addEventListener("input", () => this.#read(name));
    return setting;
  }

  #read(name) {
    const { field, error, entry } = this.#fields.get(name);
    const raw = entry.kind === "flag" ? field.checked : field.validity.badInput ? "?" : field.value;
    const { value, error: reason } = readValue(name, raw);
    const limit = reason === null && value !== undefined && !field.validity.valid ? field.validationMessage : "";
    error.textContent = reason ?? limit;
    field.setAttribute("aria-invalid", String(error.textContent !== ""));
    if (error.textContent !== "") return;
    const extra = { ...this.#controls.settings.extra };
    if (value === undefined) delete extra[name];
    else extra[name] = value;
    this.#controls.change({ extra });
    this.#showCount();
  }

  #showValues() {
    const { extra } = this.#controls.settings;
    for (const [name, { field, entry, error }] of this.#fields) {
      if (entry.kind === "flag") field.checked = extra[name] ?? entry.none;
      else field.value = writeValue(name, extra[name]);
      error.textContent = "";
    }
    this.#showCount();
  }

  #showCount() {
    const count = Object.keys(this.#controls.settings.extra).length;
    byId("parameters-count").textContent = count === 0 ? "" : `${count} set`;
  }

  /** The server's own words and limits. */
  async #describe() {
    let document = null;
    try {
      document = await (await this.#fetch("/openapi.json")).json();
    } catch {
      return; // the names have to do
    }
    for (const [name, { note, minimum, maximum }] of Object.entries(describeParameters(document))) {
      const { field, note: line, entry } = this.#fields.get(name);
      const range = minimum !== undefined && maximum !== undefined && maximum < 2 ** 31 - 1 ? ` ${minimum} to ${maximum}.` : "";
      line.textContent = `${note}${entry.kind === "number" ? range : ""}`;
      if (entry.kind !== "number") continue;
      if (minimum !== undefined) field.min = String(minimum);
      if (maximum !== undefined) field.max = String(maximum);
    }
  }

  #setUpPresets() {
    const choice = byId("preset");
    const show = (selected = "") => {
      choice.replaceChildren(new Option("Presets…", ""), ...this.#presets.names.map((name) => new Option(name, name)));
      choice.value = selected;
      byId("preset-delete").hidden = !this.#presets.isOwn(selected);
    };
    choice.addEventListener("change", () => {
      const values = this.#presets.get(choice.value);
      byId("preset-delete").hidden = !this.#presets.isOwn(choice.value);
      if (values === null) return;
      this.#controls.replace(values);
      this.#showValues();
      announce(`Preset ${choice.value}`);
    });
    byId("preset-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const field = byId("preset-name");
      const name = field.value.trim();
      if (name === "") return;
      try {
        this.#presets.save(name, this.#controls.settings);
        field.value = "";
        byId("preset-save").open = false;
        show(name);
        announce(`Preset ${name} is kept.`);
      } catch (error) {
        announce(error.message);
        field.setCustomValidity(error.message);
        field.reportValidity();
      }
    });
    byId("preset-name").addEventListener("input", (event) => event.target.setCustomValidity(""));
    byId("preset-delete").addEventListener("click", () => {
      this.#presets.remove(choice.value);
      show();
    });
    show();
  }

  /** A text of JSON that is used as long as it is valid. */
  #setUpText(id, setting, read, describe) {
    const field = byId(`${id}-text`);
    const check = () => {
      const { value, error } = read(field.value);
      byId(`${id}-error`).textContent = error ?? "";
      byId(`${id}-state`).textContent = value === null ? "" : describe(value);
      field.setAttribute("aria-invalid", String(error !== null));
    };
    field.addEventListener("input", () => {
      this.#controls.change({ [setting]: field.value });
      check();
    });
  }

  /** The form that writes the text: rows of properties. */
  #setUpRows(id) {
    const list = byId(`${id}-rows`);
    const add = () => list.append(makeRow());
    byId(`${id}-row-add`).addEventListener("click", () => {
      add();
      list.lastElementChild.querySelector("input").focus();
    });
    byId(`${id}-form`).addEventListener("submit", (event) => {
      event.preventDefault();
      const text = byId(`${id}-text`);
      const rows = [...list.children].map(readRow);
      if (id === "tools") {
        const name = byId("tool-name");
        const description = byId("tool-description");
        const { text: longer, error } = addTool(text.value, { name: name.value, description: description.value, rows });
        if (error !== null) {
          byId("tools-error").textContent = error;
          return;
        }
        text.value = longer;
        name.value = description.value = "";
      } else {
        text.value = JSON.stringify(schemaOfRows(rows), null, 2);
      }
      list.replaceChildren();
      add();
      text.dispatchEvent(new Event("input", { bubbles: true }));
    });
    add();
  }
}

/** JSON as a reader would write it; an empty text for nothing. */
function textOf(value) {
  return value === undefined || value === null ? "" : JSON.stringify(value, null, 2);
}

function makeRow() {
  const row = make("li", "row");
  const name = make("input");
  name.placeholder = "name";
  name.setAttribute("aria-label", "Name");
  const type = make("select");
  type.setAttribute("aria-label", "Type");
  type.append(...TYPES.map((word) => new Option(word, word)));
  const description = make("input");
  description.placeholder = "what it is";
  description.setAttribute("aria-label", "Description");
  const label = make("label", "note");
  const required = make("input");
  required.type = "checkbox";
  required.checked = true;
  label.append(required, " required");
  row.append(name, type, description, label);
  return row;
}

function readRow(row) {
  const [name, description, required] = row.querySelectorAll("input");
  return { name: name.value, type: row.querySelector("select").value, description: description.value, isRequired: required.checked };
}
