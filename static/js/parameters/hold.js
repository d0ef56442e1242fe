/** Says above the buttons of a form why nothing can be sent, and leads to the field that is wrong. */

import { make } from "../page/dom.js";

const words = { show: "Show" };

export class Hold {
  #line = make("p", "error held");
  #text = make("span");
  #show = make("button", "small", words.show);
  #problem;

  /**
   * @param {HTMLFormElement} form has its buttons in `.actions`
   * @param {() => {text: string, show: () => void}|null} problem what keeps the form from being sent
   */
  constructor(form, problem) {
    this.#problem = problem;
    this.#line.setAttribute("role", "alert");
    this.#line.append(this.#text, " ", this.#show);
    this.#show.addEventListener("click", () => this.#problem()?.show());
    form.querySelector(".actions").before(this.#line);
    this.update();
  }

  update() {
    const problem = this.#problem();
    this.#line.hidden = problem === null;
    const text = problem?.text ?? "";
    if (this.#text.textContent !== text) this.#text.textContent = text; // an alert is read out once
  }
}
