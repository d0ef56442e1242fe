/** Files that are dropped anywhere on the page, or pasted: a browser would open the first, and ignore the second. */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";

/** @param {(files: File[]) => void} onFiles */
export function listenForFiles(onFiles) {
  const veil = make("div", "drop-veil", words.attachments.drop);
  veil.hidden = true;
  document.body.append(veil);
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files") ?? false;
  const isBusy = () => document.querySelector("dialog[open]") !== null; // what is written below it cannot be seen

  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = isBusy() ? "none" : "copy";
    veil.hidden = isBusy();
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) veil.hidden = true; // the pointer has left the window
  });
  document.addEventListener("drop", (event) => {
    veil.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    if (!isBusy()) onFiles([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData;
    // Office programs add a picture of the text that they copy.
    if (files.length === 0 || types.includes("text/plain") || isBusy()) return;
    event.preventDefault();
    onFiles([...files]);
  });
}
