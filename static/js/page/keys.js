/** The keys of the whole page, and the list that names them. */

import { words } from "../words/words.js";
import { make } from "./dom.js";

const CTRL = /Mac|iPhone|iPad/.test(globalThis.navigator?.platform ?? "") ? "⌘" : "Ctrl";

/**
 * @param {{stop: () => void, create: () => void, search: () => void, sidebar: () => void, inspect: () => void,
 *   help: () => void}} run
 * @returns {HTMLElement[]} the list, as terms and descriptions
 */
export function setUpKeys(run) {
  const { keys } = words;
  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented) return;
    const isTyped = event.target.closest?.("input, textarea, select, [contenteditable]") !== null;
    const action = actionOf(event, isTyped);
    if (action === null || (action !== "stop" && document.querySelector("dialog[open]") !== null)) return;
    if (action !== "stop") event.preventDefault();
    run[action]();
  });
  const rows = [
    [[CTRL, "K"], keys.palette], [[CTRL, "⇧", "O"], keys.create], [["/"], keys.search], [[CTRL, "B"], keys.sidebar],
    [[CTRL, "I"], keys.inspect], [["Enter"], keys.send], [["⇧", "Enter"], keys.line], [["↑"], keys.editLast],
    [[CTRL, "Enter"], keys.sendEdited], [["Esc"], keys.stop], [["?"], keys.help],
  ];
  return rows.map(([names, does]) => {
    const row = make("div");
    const term = make("dt");
    term.append(...names.map((name) => make("kbd", "", name)));
    row.append(term, make("dd", "", does));
    return row;
  });
}

function actionOf({ key, ctrlKey, metaKey, shiftKey, altKey }, isTyped) {
  if (key === "Escape") return "stop";
  if (altKey) return null;
  if (ctrlKey || metaKey) {
    if (shiftKey) return key.toLowerCase() === "o" ? "create" : null;
    return { b: "sidebar", i: "inspect" }[key.toLowerCase()] ?? null;
  }
  if (isTyped) return null;
  return { "/": "search", "?": "help" }[key] ?? null;
}
