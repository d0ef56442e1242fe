/** The few things every part of the page does with the document. Text enters it as text, never as HTML. */

/** The element with this id; a missing one is a defect of the page and said so. */
export function byId(id) {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the page has no element #${id}`);
  return element;
}

/** A new element with a class and, optionally, text. A button submits nothing. */
export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (tag === "button") element.type = "button";
  if (className !== "") element.className = className;
  if (text !== "") element.textContent = text;
  return element;
}

/** Speaks to screen readers, politely. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** The figures under an answer. @param {string[]} figures */
export function showFigures(element, figures) {
  element.replaceChildren(...figures.map((figure) => make("span", "figure", figure)));
}

/** Shows one button in the place of another; the focus, if the other had it, goes along. */
export function swapButtons(hide, show) {
  const hadFocus = document.activeElement === hide;
  hide.hidden = true;
  show.hidden = false;
  if (hadFocus) show.focus();
}

/**
 * Calls back on Enter, but not on Shift+Enter nor while an input method composes a character. A phone's keyboard has no
 * Shift+Enter: there, Enter starts a line, and a button sends.
 */
export function onEnter(textarea, callback) {
  const touch = matchMedia("(pointer: coarse)");
  textarea.enterKeyHint = touch.matches ? "enter" : textarea.enterKeyHint;
  textarea.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (touch.matches && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    callback();
  });
}

/** Keeps a scrolling element at its end while text is added, but only for a reader who is there. */
export class Follower {
  #element;

  constructor(element) {
    this.#element = element;
  }

  get isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#element;
    return scrollHeight - scrollTop - clientHeight < 40;
  }

  /** Runs `write`, which lengthens the content. */
  around(write) {
    const { isAtEnd } = this;
    write();
    if (isAtEnd) this.#element.scrollTop = this.#element.scrollHeight;
  }
}
