/** What the colours and marks of tokens mean. */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";

const NUM_SHADES = 8;

/** @returns {HTMLElement} */
export function makeLegend() {
  const legend = make("ul", "legend token-legend");
  legend.setAttribute("aria-label", words.token.legend);
  const scale = make("span", "scale");
  scale.append(...Array.from({ length: NUM_SHADES }, (_, shade) => make("span", `shade${shade}`)));
  scale.setAttribute("aria-hidden", "true");
  const colours = make("li", "colours");
  colours.append(words.token.likely, scale, words.token.unlikely);
  legend.append(colours, ...["cached", "given", "chosen", "differs"].map((mark) => {
    const entry = make("li");
    const sample = make("span", `token ${mark}`, words.token.sample);
    sample.setAttribute("aria-hidden", "true");
    entry.append(sample, words.token[mark]);
    return entry;
  }));
  return legend;
}
