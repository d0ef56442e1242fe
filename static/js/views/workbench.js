/** The page that compares: one prompt, and one to four columns of answers. */

import { copyText } from "../page/clipboard.js";
import { announce, byId } from "../page/dom.js";
import { words } from "../words/words.js";
import { NUM_ALTERNATIVES } from "./answer.js";
import { Bench } from "./bench.js";
import { fromFragment, toFragment } from "./setup_link.js";

export class Workbench {
  #deps;
  #bench;
  #seed = null; // of the answers that are shown

  /**
   * @param {{serverOf: (origin: string) => import("../transport/server.js").Server, peers: string[],
   *   parameters: (isChat: boolean) => object, model: () => object|null, models: () => string[], transport: () => string,
   *   canGenerate: (isChat: boolean) => boolean, hasSeed: () => boolean,
   *   restore: (parameters: object, isChat: boolean) => void}} deps `hasSeed` tells whether the reader has set one
   */
  constructor(deps) {
    this.#deps = deps;
    this.#bench = new Bench(byId("tokens"), {
      ...deps, colouring: () => byId("tokens-colouring").value, changed: () => this.#showButtons(),
    });
    byId("tokens-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    byId("tokens-stop").addEventListener("click", () => this.stop());
    byId("tokens-again").addEventListener("click", () => this.#bench.replay());
    byId("tokens-link").addEventListener("click", () => this.#copyLink());
    byId("tokens-columns").addEventListener("change", () => this.#bench.setColumns(Number(byId("tokens-columns").value)));
    byId("tokens-colouring").addEventListener("change", () => (this.#bench.colouring = byId("tokens-colouring").value));
    this.#setColumns(1);
    this.#bench.look("tokens");
  }

  /** Takes over the setup of an address, if it has one. @param {string} fragment */
  takeSetup(fragment) {
    const setup = fromFragment(fragment);
    if (setup !== null) this.#restore(setup);
  }

  offerModels(models) {
    this.#bench.offerModels(models);
  }

  focus() {
    byId("tokens-prompt").focus({ preventScroll: true });
  }

  stop() {
    this.#bench.stop();
  }

  async run() {
    const prompt = byId("tokens-prompt").value;
    const { columns } = this.#bench;
    const isChat = byId("tokens-kind").value === "chat";
    if (prompt === "" || !this.#deps.canGenerate(isChat) || !columns.every((column) => column.check())) return;
    const asked = isChat
      ? { messages: [{ role: "user", content: prompt }], logprobs: true, top_logprobs: NUM_ALTERNATIVES }
      : { prompt, logprobs: NUM_ALTERNATIVES };
    const task = { ...this.#deps.parameters(isChat), ...asked };
    this.#seed = task.seed;
    this.#bench.release();
    for (const column of columns) column.clear();
    // Answers that are compared differ from each other, unless the reader has set a seed for all of them.
    const seedOf = (at) => (this.#deps.hasSeed() ? task.seed : (task.seed + at) % 2 ** 32);
    const running = columns.map((column, at) => column.run(column.taskOf({ ...task, seed: seedOf(at) })));
    this.#showButtons();
    await Promise.all(running);
    this.#bench.ended();
    announce(words.tokens.complete);
  }

  #setColumns(count) {
    byId("tokens-columns").value = String(count);
    this.#bench.setColumns(count);
  }

  #showButtons() {
    const { isRunning, columns } = this.#bench;
    byId("tokens-run").hidden = isRunning;
    byId("tokens-stop").hidden = !isRunning;
    byId("tokens-again").disabled = isRunning || columns.every(({ answer }) => answer === null);
  }

  async #copyLink() {
    const kind = byId("tokens-kind").value;
    const parameters = this.#deps.parameters(kind === "chat");
    const columns = this.#bench.columns.map((column) => column.settings);
    // Whoever opens the link sees the answers that are shown, and not those of other seeds.
    if (!this.#deps.hasSeed()) {
      parameters.seed = this.#seed ?? parameters.seed;
      if (columns.length > 1) columns.forEach((settings, at) => (settings.seed ||= this.#bench.columns[at].seed));
    }
    history.replaceState(null, "", toFragment({ prompt: byId("tokens-prompt").value, kind, parameters, columns }));
    await copyText(location.href, byId("tokens-link"));
    announce(words.tokens.linkCopied);
  }

  #restore({ prompt, kind, columns, parameters }) {
    if (typeof prompt === "string") byId("tokens-prompt").value = prompt;
    if (kind === "chat" || kind === "text") byId("tokens-kind").value = kind;
    if (Array.isArray(columns) && columns.length >= 1 && columns.length <= 4) {
      this.#setColumns(columns.length);
      if (columns.length > 1) columns.forEach((settings, at) => (this.#bench.columns[at].settings = Object(settings)));
    }
    if (parameters !== null && typeof parameters === "object") this.#deps.restore(parameters, kind === "chat");
  }
}
