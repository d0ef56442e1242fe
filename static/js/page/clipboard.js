/** Copies text, and says so on the button that was pressed. */

import { words } from "../words/words.js";
import { announce } from "./dom.js";

const SHOWN = 1500; // milliseconds

export async function copyText(text, button) {
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    isCopied = copyBySelection(text); // a page over plain HTTP from another machine has no clipboard
  }
  const said = isCopied ? words.common.copied : words.common.notCopied;
  announce(said);
  button.dataset.label ??= button.textContent;
  button.textContent = said;
  setTimeout(() => (button.textContent = button.dataset.label), SHOWN);
}

function copyBySelection(text) {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}

/** Offers a text as a file. */
export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: name.endsWith(".json") ? "application/json" : "text/markdown" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
