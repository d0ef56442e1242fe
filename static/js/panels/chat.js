/** The chat: questions, streamed answers, the system prompt. */

import { Conversation } from "./conversation.js";
import { Follower, announce, byId, make, onEnter, showFigures, swapButtons } from "../page/dom.js";
import { Generation } from "../answer/generation.js";
import { MessageText } from "../answer/message_text.js";

export class Chat {
  #conversation = new Conversation();
  #log = byId("chat-log");
  #welcome = byId("chat-welcome");
  #input = byId("chat-input");
  #send = byId("chat-send");
  #stop = byId("chat-stop");
  #follower = new Follower(this.#log);
  #generation = null;
  #deps;

  /**
   * @param {{transport: () => object, sampling: () => object, system: () => string,
   *          canGenerate: () => boolean, onError: (error: Error) => void}} deps
   */
  constructor(deps) {
    this.#deps = deps;
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    onEnter(this.#input, () => this.submit());
    this.#stop.addEventListener("click", () => this.stop());
    byId("chat-clear").addEventListener("click", () => this.clear());
    for (const example of this.#welcome.querySelectorAll("button")) {
      example.addEventListener("click", () => {
        this.#input.value = example.textContent;
        this.submit();
      });
    }
  }

  focus() {
    this.#input.focus({ preventScroll: true });
  }

  stop() {
    this.#generation?.stop();
  }

  clear() {
    this.stop();
    this.#conversation.clear();
    this.#log.replaceChildren(this.#welcome);
    this.#welcome.hidden = false;
    announce("The conversation is empty.");
    this.focus();
  }

  /** Sends what is written; does nothing when there is nothing to send or an answer is being written. */
  async submit() {
    const question = this.#input.value.trim();
    if (question === "" || this.#generation !== null || !this.#deps.canGenerate()) return;
    this.#input.value = "";
    this.#welcome.hidden = true;
    const conversation = this.#conversation;
    const messages = conversation.ask(this.#deps.system(), question);
    this.#log.append(makeMessage("user", "You", question));
    const message = makeMessage("assistant", "Model");
    this.#log.append(message);
    this.#log.scrollTop = this.#log.scrollHeight;
    const outcome = await this.#answer(message, messages, (answer) => conversation.add(question, answer));
    if (outcome.error === null) return;
    if (outcome.numTokens === 0 && this.#input.value === "") this.#input.value = question; // nothing typed is lost
    this.#deps.onError(outcome.error);
  }

  async #answer(message, messages, keep) {
    const figures = message.querySelector(".figures");
    const content = new MessageText(message.querySelector(".content"));
    let answer = "";
    this.#generation = new Generation();
    this.#showBusy(message, true);
    const outcome = await this.#generation.run(this.#deps.transport(), { messages, ...this.#deps.sampling() }, {
      onText: (text) => {
        answer += text;
        this.#follower.around(() => content.append(text));
      },
      onFigures: (words) => showFigures(figures, words),
    });
    this.#generation = null;
    this.#follower.around(() => {
      content.end();
      message.dataset.finish = outcome.finish;
      if (outcome.error !== null) message.append(makeError(outcome.error));
      this.#showBusy(message, false);
    });
    if (message.isConnected) keep(answer); // a conversation cleared meanwhile starts anew
    return outcome;
  }

  #showBusy(message, isBusy) {
    message.setAttribute("aria-busy", String(isBusy)); // read aloud once it is whole
    if (isBusy) swapButtons(this.#send, this.#stop);
    else swapButtons(this.#stop, this.#send);
  }
}

function makeMessage(role, name, text = "") {
  const message = make("article", `message ${role}`);
  message.setAttribute("aria-label", name);
  message.append(make("div", "who", name), make("div", "content", text));
  if (role === "assistant") {
    const figures = make("p", "figures");
    figures.setAttribute("aria-live", "off");
    message.append(figures);
  }
  return message;
}

function makeError(error) {
  const line = make("p", "error", error.message);
  line.setAttribute("role", "alert");
  return line;
}
