/** The fields of tools and of a JSON schema: each a text of JSON, checked as it is written, and a form that writes it. */

import { byId, make } from "../page/dom.js";
import { words } from "../words/words.js";
import { TYPES, addTool, readSchema, readTools, schemaOfRows } from "./structure.js";

export class StructureFields {
  #controls;
  #onChange;
  #errors = { tools: null, schema: null };

  /** @param {import("../page/controls.js").Controls} controls @param {() => void} onChange */
  constructor(controls, onChange) {
    this.#controls = controls;
    this.#onChange = onChange;
    this.#setUpText("tools", "toolsText", readTools, (value) => words.structure.numTools(value.length));
    this.#setUpText("schema", "schemaText", readSchema, () => words.structure.inUse);
    // A schema holds for all conversations, so each one tells of it where messages are written.
    byId("schema-text").addEventListener("input", () => (byId("chat-schema").hidden = byId("schema-text").value.trim() === ""));
    byId("chat-schema").addEventListener("click", () => byId("schema-dialog").showModal());
    this.#setUpRows("tools");
    this.#setUpRows("schema");
    byId("tool-choice").addEventListener("change", (event) => controls.change({ toolChoice: event.target.value }));
    this.show();
  }

  /** Tools go with chats alone. */
  set isChat(isChat) {
    byId("tools-open").hidden = !isChat;
  }

  /** The first text that cannot be sent. @returns {{text: string, field: HTMLElement, dialog: HTMLDialogElement}|null} */
  problem(isChat) {
    for (const id of isChat ? ["tools", "schema"] : ["schema"]) {
      const error = this.#errors[id];
      if (error !== null) return { text: words.structure[`${id}Problem`](error), field: byId(`${id}-text`), dialog: byId(`${id}-dialog`) };
    }
    return null;
  }

  /** Takes over the tools and the schema of a request. */
  restore({ tools, tool_choice: toolChoice, response_format: format }) {
    this.#controls.change({ toolsText: textOf(tools), toolChoice, schemaText: textOf(format?.json_schema?.schema) });
    this.show();
  }

  /** Makes the fields show the settings. */
  show() {
    const { toolsText, schemaText, toolChoice } = this.#controls.settings;
    for (const [id, text] of [["tools-text", toolsText], ["schema-text", schemaText]]) {
      byId(id).value = text;
      byId(id).dispatchEvent(new Event("input"));
    }
    byId("tool-choice").value = toolChoice;
  }

  #setUpText(id, setting, read, describe) {
    const field = byId(`${id}-text`);
    field.addEventListener("input", () => {
      this.#controls.change({ [setting]: field.value });
      const { value, error } = read(field.value);
      this.#errors[id] = error;
      byId(`${id}-error`).textContent = error ?? "";
      const state = byId(`${id}-state`);
      state.textContent = error === null ? (value === null ? "" : describe(value)) : words.structure.invalid;
      state.classList.toggle("wrong", error !== null);
      field.setAttribute("aria-invalid", String(error !== null));
      this.#onChange();
    });
  }

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
  name.placeholder = words.structure.namePlaceholder;
  name.setAttribute("aria-label", words.structure.name);
  const type = make("select");
  type.setAttribute("aria-label", words.structure.type);
  type.append(...TYPES.map((word) => new Option(word, word)));
  const description = make("input");
  description.placeholder = words.structure.descriptionPlaceholder;
  description.setAttribute("aria-label", words.structure.description);
  const label = make("label", "note");
  const required = make("input");
  required.type = "checkbox";
  required.checked = true;
  label.append(required, ` ${words.structure.isRequired}`);
  row.append(name, type, description, label);
  return row;
}

function readRow(row) {
  const [name, description, required] = row.querySelectorAll("input");
  return { name: name.value, type: row.querySelector("select").value, description: description.value, isRequired: required.checked };
}
