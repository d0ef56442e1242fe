/** The table of slots: a row for each, filled anew with each event, without making elements anew. */

import { make } from "../page/dom.js";

const WORDS = { prompt: "reads its prompt", answer: "answers", ending: "has ended" };
const MOST_ROWS = 64;

export class SlotTable {
  #body;
  #rows = [];

  /** @param {HTMLElement} body the table's body */
  constructor(body) {
    this.#body = body;
  }

  /** The number of slots that are shown. */
  get length() {
    return this.#rows.length;
  }

  show(event) {
    const bySlot = new Map(event.slots.map((request) => [request.slot, request]));
    const numRows = Math.min(event.num_slots, MOST_ROWS);
    while (this.#rows.length < numRows) this.#rows.push(this.#makeRow(this.#rows.length));
    while (this.#rows.length > numRows) this.#rows.pop().row.remove();
    this.#rows.forEach((cells, slot) => showRow(cells, bySlot.get(slot)));
  }

  #makeRow(slot) {
    const row = make("tr");
    const head = make("th", "", String(slot));
    head.scope = "row";
    const id = make("td", "slot-id");
    const what = make("td");
    const bar = make("td", "slot-prompt");
    const progress = make("progress");
    progress.max = 1;
    progress.setAttribute("aria-label", `Prompt in slot ${slot}`);
    const prompt = make("span");
    bar.append(progress, prompt);
    const output = make("td", "number");
    const age = make("td", "number");
    row.append(head, id, what, bar, output, age);
    this.#body.append(row);
    return { row, id, what, progress, prompt, output, age };
  }
}

function showRow({ row, id, what, progress, prompt, output, age }, request) {
  const isFree = request === undefined;
  row.classList.toggle("free", isFree);
  write(id, isFree ? "" : (request.id ?? request.key));
  write(what, isFree ? "free" : (WORDS[request.state] ?? request.state));
  progress.hidden = isFree;
  progress.value = isFree ? 0 : request.computed / request.prompt;
  write(prompt, isFree ? "" : `${request.computed}/${request.prompt}${request.cached > 0 ? `, ${request.cached} cached` : ""}`);
  write(output, isFree ? "" : String(request.output));
  write(age, isFree ? "" : `${(request.age_ms / 1000).toFixed(1)} s`);
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
