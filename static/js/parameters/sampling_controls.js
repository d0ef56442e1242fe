/**
 * The first controls: temperature, top p, the length of an answer and the seed. One that nobody has touched is not sent:
 * then the model's own recommendation holds, which its control shows, and an answer goes on until it is done.
 */

import { byId, make } from "../page/dom.js";
import { words } from "../words/words.js";
import { limitError, shownNumber } from "./limits.js";

const SLIDERS = [
  { id: "temperature", name: "temperature", wire: "temperature" },
  { id: "top-p", name: "topP", wire: "top_p" },
];
const PLAIN = 1; // temperature and top p of a model that recommends none

export class SamplingControls {
  #controls;
  #onChange;
  #recommended = null; // by the wire's names, once the model is known
  #maxModelLen = null;
  #sliders; // {field, output, origin, reset, name, wire}
  #numbers; // {field, error, label, name, limits}

  /** @param {import("../page/controls.js").Controls} controls @param {() => void} onChange */
  constructor(controls, onChange) {
    this.#controls = controls;
    this.#onChange = onChange;
    this.#sliders = SLIDERS.map((slider) => this.#setUpSlider(slider));
    this.#numbers = [
      this.#setUpNumber("max-tokens", "maxTokens", words.parameters.length, () => ({ minimum: 1, maximum: this.#mostTokens, isWhole: true })),
      this.#setUpNumber("seed", "seed", words.parameters.seed, () => ({
        minimum: -Number.MAX_SAFE_INTEGER, maximum: Number.MAX_SAFE_INTEGER, isWhole: true,
      })),
    ];
    this.show();
  }

  /** The first field whose value cannot be sent. @returns {{text: string, field: HTMLElement}|null} */
  get problem() {
    const wrong = this.#numbers.find(({ error }) => error.textContent !== "");
    return wrong === undefined ? null : { text: wrong.error.textContent, field: wrong.field };
  }

  /** What is set here otherwise than the model recommends. @returns {import("./departures.js").Departure[]} */
  get departures() {
    const { settings } = this.#controls;
    const sliders = SLIDERS.filter(({ name, wire }) => settings[name] !== null && settings[name] !== (this.#recommended?.[wire] ?? PLAIN));
    const numbers = this.#numbers.filter(({ name }) => settings[name] !== null);
    return [
      ...sliders.map(({ name }) => ({ name, text: `${words.parameters[name]} ${settings[name]}` })),
      ...numbers.map(({ name, label }) => ({ name, text: `${label} ${settings[name]}` })),
    ];
  }

  /** The control of a setting; undefined where it has none here. */
  fieldOf(name) {
    return [...this.#sliders, ...this.#numbers].find((control) => control.name === name)?.field;
  }

  /** What a model recommends, and how long its answers can be. @param {object|null} model an entry of `/v1/models` */
  set model(model) {
    this.#recommended = model === null ? null : (model.sampling_defaults ?? {});
    this.#maxModelLen = model?.max_model_len ?? null;
    const field = byId("max-tokens");
    if (this.#mostTokens === undefined) field.removeAttribute("max");
    else field.max = String(this.#mostTokens);
    byId("max-tokens-note").textContent = words.parameters.lengthNote(this.#mostTokens === undefined ? null : shownNumber(this.#mostTokens));
    for (const slider of this.#sliders) this.#showSlider(slider);
    for (const number of this.#numbers) this.#check(number);
  }

  /** Takes over the parameters of a request; those that it does not name are as the model recommends. */
  restore({ temperature, top_p: topP, max_completion_tokens: newer, max_tokens: older, seed }) {
    const given = { temperature, topP, maxTokens: newer ?? older, seed };
    for (const [name, value] of Object.entries(given)) if (typeof value !== "number") given[name] = null;
    this.#controls.change(given);
    this.show();
  }

  /** Makes the controls show the settings. */
  show() {
    const { settings } = this.#controls;
    for (const slider of this.#sliders) this.#showSlider(slider);
    for (const number of this.#numbers) {
      number.field.value = settings[number.name] === null ? "" : String(settings[number.name]);
      this.#check(number);
    }
  }

  /** Of the model's tokens at least one is the prompt's. */
  get #mostTokens() {
    return this.#maxModelLen === null ? undefined : this.#maxModelLen - 1;
  }

  #setUpSlider({ id, name, wire }) {
    const field = byId(id);
    const origin = make("p", "note origin");
    const reset = make("button", "small reset");
    byId(`${id}-note`).after(origin);
    const slider = { field, output: byId(`${id}-value`), origin, reset, name, wire };
    field.addEventListener("input", () => {
      this.#controls.change({ [name]: Number(field.value) });
      this.#showSlider(slider);
    });
    reset.addEventListener("click", () => {
      this.#controls.change({ [name]: null });
      this.#showSlider(slider);
      field.focus();
    });
    return slider;
  }

  #showSlider({ field, output, origin, reset, name, wire }) {
    const chosen = this.#controls.settings[name];
    const recommended = this.#recommended?.[wire] ?? PLAIN;
    const isRecommended = this.#recommended === null || wire in this.#recommended;
    field.value = String(chosen ?? recommended);
    output.textContent = (chosen ?? recommended).toFixed(2);
    output.classList.toggle("recommended", chosen === null);
    reset.textContent = (isRecommended ? words.parameters.reset : words.parameters.resetToUsual)(recommended.toFixed(2));
    if (chosen === null) origin.replaceChildren(isRecommended ? words.parameters.recommended : words.parameters.usual);
    else origin.replaceChildren(reset);
  }

  #setUpNumber(id, name, label, limits) {
    const field = byId(id);
    const error = make("p", "invalid");
    error.id = `${id}-error`;
    error.setAttribute("role", "alert");
    byId(`${id}-note`).after(error);
    field.setAttribute("aria-describedby", `${id}-note ${error.id}`);
    field.step = "any"; // what is no whole number is told by our own sentence
    const number = { field, error, label, name, limits };
    field.addEventListener("input", () => {
      if (this.#check(number)) this.#controls.change({ [name]: field.value === "" ? null : Number(field.value) });
    });
    return number;
  }

  #check({ field, error, label, limits }) {
    const text = field.validity.badInput ? "?" : field.value;
    const problem = text === "" ? null : limitError(label, text, limits());
    error.textContent = problem ?? "";
    field.setAttribute("aria-invalid", String(problem !== null));
    this.#onChange();
    return problem === null;
  }
}
