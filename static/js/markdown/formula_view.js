/**
 * Formulas in the document: KaTeX draws them. The library is loaded with the first formula; until it is there, and where
 * it fails, the source is shown as it was written.
 */

import { packageUrl } from "../page/packages.js";
import { whenNear } from "./near.js";

const BUDGET = 8; // milliseconds of drawing in one turn of the page; what is left waits for the next ones
const MAX_DRAWN = 500; // formulas that are remembered
const OPTIONS = { throwOnError: true, trust: false, maxExpand: 500, maxSize: 20, strict: false };

const drawn = new Map(); // by source: the element, or null where there is none
const queue = []; // what is near the screen and not drawn yet
let katex = null; // or a promise of it
let spent = 0; // milliseconds of this turn

/** @param {{attributes: object, children: string[], formula: {tex: string, isDisplay: boolean}}} part */
export function buildFormula(part) {
  const element = document.createElement("span");
  element.className = part.attributes.class;
  element.textContent = part.children[0];
  if (part.formula.isDisplay) element.tabIndex = 0; // a wide one scrolls, also by keyboard
  if (typeof katex?.render === "function" && spent < BUDGET) draw(element, part);
  else whenNear(element, () => load().then(() => drawSoon(element, part), () => {}));
  return element;
}

function drawSoon(element, part) {
  queue.push(() => draw(element, part));
  if (queue.length === 1) setTimeout(drawQueue);
}

function drawQueue() {
  while (queue.length > 0 && spent < BUDGET) {
    queue[0]();
    queue.shift();
  }
  if (queue.length > 0) setTimeout(drawQueue);
}

function load() {
  katex ??= Promise.all([addStyle("katex", "dist/katex.min.css"), addScript("katex", "dist/katex.min.js")]).then(() => {
    katex = globalThis.katex;
  });
  return Promise.resolve(katex);
}

function draw(element, { children: [source], formula: { tex, isDisplay } }) {
  const begin = performance.now();
  if (spent === 0) setTimeout(() => (spent = 0));
  if (!drawn.has(source)) {
    if (drawn.size >= MAX_DRAWN) drawn.delete(drawn.keys().next().value);
    drawn.set(source, mathOf(tex, isDisplay));
  }
  const math = drawn.get(source);
  if (math === null) element.classList.add("failed");
  else element.replaceChildren(math.cloneNode(true));
  spent += performance.now() - begin;
}

function mathOf(tex, displayMode) {
  const holder = document.createElement("span");
  try {
    katex.render(tex, holder, { ...OPTIONS, displayMode });
  } catch {
    return null;
  }
  return holder.firstElementChild;
}

function addStyle(name, path) {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = packageUrl(name, path);
  return added(link);
}

function addScript(name, path) {
  const script = document.createElement("script");
  script.src = packageUrl(name, path);
  return added(script);
}

function added(element) {
  return new Promise((resolve, reject) => {
    element.addEventListener("load", resolve);
    element.addEventListener("error", () => reject(new Error("the library could not be loaded")));
    document.head.append(element);
  });
}
