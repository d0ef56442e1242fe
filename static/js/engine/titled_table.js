/** A table of models, keys or the like with its title. */

import { make } from "../page/dom.js";

/**
 * @param {string} kind a class of the table; its title and its body have ids with it
 * @param {string} title
 * @param {{word: string, className: string}[]} columns
 * @param {HTMLElement} body
 * @param {string} place the beginning of these ids
 * @returns {HTMLElement[]}
 */
export function titledTable(kind, title, columns, body, place = "engine") {
  const heading = make("h2", "", title);
  heading.id = `${place}-${kind}-title`;
  const table = make("table", `slots ${kind}`);
  table.setAttribute("aria-labelledby", heading.id);
  const row = make("tr");
  for (const { word, className } of columns) {
    const cell = make("th", className, word);
    cell.scope = "col";
    row.append(cell);
  }
  const head = make("thead");
  head.append(row);
  body.id = `${place}-${kind}`;
  table.append(head, body);
  return [heading, table];
}
