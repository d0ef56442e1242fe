/**
 * The HTML of an answer as it looks, over the page: in a frame of an origin of its own, without its scripts, and without
 * any connection. A part of the page that is loaded with the first preview.
 */

import { words } from "../words/words.js";
import { make } from "./dom.js";

/** @param {string} html */
export function showPreview(html) {
  const dialog = make("dialog", "preview-dialog");
  const note = make("p", "note", words.chat.previewNote);
  const close = make("button", "quiet", words.common.close);
  close.addEventListener("click", () => dialog.close());
  const head = make("div", "drawer-head");
  head.append(note, close);
  const frame = make("iframe");
  frame.title = words.chat.preview;
  frame.sandbox = "allow-scripts"; // of ours, which its policy names; it has no origin, and so nothing of this page's
  frame.src = new URL("static/preview/index.html", document.baseURI).href;
  frame.addEventListener("load", () => frame.contentWindow.postMessage(html, "*"), { once: true });
  dialog.append(head, frame);
  dialog.setAttribute("aria-label", words.chat.preview);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside the preview
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
