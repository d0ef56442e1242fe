/** A picture as large as the window allows, over the page. */

import { words } from "../words/words.js";
import { make } from "./dom.js";

/** @param {{name: string, url: string}} picture */
export function showPicture({ name, url }) {
  const dialog = make("dialog", "picture-dialog");
  dialog.setAttribute("aria-label", name);
  const picture = make("img");
  picture.src = url;
  picture.alt = name;
  const close = make("button", "quiet", words.common.close);
  close.addEventListener("click", () => dialog.close());
  dialog.append(picture, close);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside the picture
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
