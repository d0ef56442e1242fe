/** What the colours and marks of tokens mean. */

import { make } from "../page/dom.js";

const NUM_SHADES = 8;

const words = {
  label: "Colours and marks",
  likely: "likely",
  unlikely: "unlikely",
  cached: "in a prompt: from the prefix cache; in an answer: narrowed down by the grammar",
  given: "the answer before a branch",
  chosen: "chosen by you",
  differs: "where columns part",
  sample: "token",
};

/** @returns {HTMLElement} */
export function makeLegend() {
  const legend = make("ul", "legend token-legend");
  legend.setAttribute("aria-label", words.label);
  const scale = make("span", "scale");
  scale.append(...Array.from({ length: NUM_SHADES }, (_, shade) => make("span", `shade${shade}`)));
  scale.setAttribute("aria-hidden", "true");
  const colours = make("li", "colours");
  colours.append(words.likely, scale, words.unlikely);
  legend.append(colours, ...["cached", "given", "chosen", "differs"].map((mark) => {
    const entry = make("li");
    const sample = make("span", `token ${mark}`, words.sample);
    sample.setAttribute("aria-hidden", "true");
    entry.append(sample, words[mark]);
    return entry;
  }));
  return legend;
}
