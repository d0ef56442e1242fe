/** Files that are dropped anywhere on the page, or pasted: a browser would open the first, and ignore the second. */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";

const LONG = 5000; // characters of a pasted text that becomes a file

/** @param {(files: File[]) => void} onFiles */
export function listenForFiles(onFiles) {
  const veil = make("div", "drop-veil", words.attachments.drop);
  veil.hidden = true;
  document.body.append(veil);
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files") ?? false;
  const isBusy = () => document.querySelector("dialog[open]") !== null; // what is written below it cannot be seen

  // With Shift held, a text goes into the message, however long it is.
  let isPlain = false;
  for (const name of ["keydown", "keyup"]) document.addEventListener(name, (event) => (isPlain = event.shiftKey));

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
    if (isBusy()) return;
    // Office programs add a picture of the text that they copy.
    if (files.length > 0 && !types.includes("text/plain")) {
      event.preventDefault();
      onFiles([...files]);
    } else if (event.target.id === "chat-input" && !isPlain) {
      const text = event.clipboardData.getData("text/plain");
      if (text.length < LONG) return;
      event.preventDefault();
      onFiles([new File([text], words.attachments.pasted, { type: "text/plain" })]);
    }
  });
}
