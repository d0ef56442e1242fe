/** One message of the chat as an article: its text, reasoning, calls, figures, and what can be done with it. */

import { MarkdownView } from "../markdown/view.js";
import { copyText } from "../page/clipboard.js";
import { make, showFigures } from "../page/dom.js";
import { showPicture } from "../page/picture_dialog.js";
import { tellFigures } from "../words/figures.js";
import { words } from "../words/words.js";
import { ToolCards } from "./calls/tool_cards.js";

const OPEN_ENDS = ["length", "abort", "timeout", "cut", "error", "edited"];

export class MessageView {
  element;
  node;
  #actions;
  #content;
  #markdown = null;
  #numShown = 0; // characters of the content
  #reasoning = null;
  #tools = null;
  #isSource = false;
  #branches = ""; // its place among its siblings, as it is shown

  /**
   * @param {object} node see `store/tree.js`
   * @param {{siblings: (node: object) => object[], show: (id: string) => void, edit: (node: object, text: string) => void,
   *   regenerate: (node: object) => void, continue: (node: object) => void, remove: (node: object) => void,
   *   inspect: (node: object) => void, fork: (node: object) => void, shorten: () => void, create: () => void,
   *   answerCalls: (node: object, results: object) => void, resultsOf: (node: object) => object[],
   *   runnerOf: Function, isAllowed: Function, allow: Function, run: Function, isRunning: Function}} actions the last five
   *   take a call, see `ToolCards`
   */
  constructor(node, actions) {
    this.node = node;
    this.#actions = actions;
    this.element = make("article", `message ${node.role}`);
    this.element.dataset.node = node.id;
    const name = node.role === "assistant" ? (node.model ?? words.chat.model) : words.chat[node.role];
    this.element.setAttribute("aria-label", name);
    this.#content = make("div", "content");
    this.element.append(this.#head(name));
    if (node.role === "assistant") this.#makeAnswer();
    else this.#makeOther();
    this.refresh();
  }

  /** Who wrote it, and when. */
  #head(name) {
    const head = make("div", "who");
    const { created } = this.node;
    head.append(make("span", "name", name));
    if (created > 1e11) { // what an older page has brought may have no time
      const date = new Date(created);
      const isToday = date.toDateString() === new Date().toDateString();
      const time = make("time", "", date.toLocaleString(words.common.locale, isToday ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" }));
      time.dateTime = date.toISOString();
      head.append(time);
    }
    return head;
  }

  #makeAnswer() {
    this.element.append(this.#content);
    this.#markdown = new MarkdownView(this.#content);
    const figures = make("p", "figures");
    figures.setAttribute("aria-live", "off");
    this.element.append(figures);
    this.element.append(this.#foot());
    if (this.node.finish !== null) this.finish();
    else this.element.setAttribute("aria-busy", "true");
  }

  #makeOther() {
    for (const attachment of this.node.attachments ?? []) {
      this.element.append(attachment.url === undefined ? fileOf(attachment) : pictureOf(attachment));
    }
    this.#content.textContent = this.node.content;
    this.element.append(this.#content, this.#foot());
  }

  /** Shows what the node has more than it had. */
  refresh() {
    const { node } = this;
    if (node.role !== "assistant") return;
    if (node.reasoning !== "") this.#showReasoning();
    if (node.content.length > this.#numShown) {
      const text = node.content.slice(this.#numShown);
      this.#numShown = node.content.length;
      if (this.#isSource) this.#content.append(text);
      else this.#markdown.append(text);
    }
    if (node.toolCalls.length > 0) this.#showCalls();
    showFigures(this.element.querySelector(".figures"), tellFigures(node.figures));
  }

  /** The answer goes on: what was its end is none any more. */
  reopen() {
    this.element.setAttribute("aria-busy", "true");
    delete this.element.dataset.finish;
    this.element.querySelector(":scope > .error")?.remove();
    this.#showWhole(); // an open end of markdown is open again
  }

  finish() {
    this.refresh();
    const { node } = this;
    if (!this.#isSource) this.#markdown.end();
    this.element.setAttribute("aria-busy", "false");
    this.element.dataset.finish = node.finish;
    this.setWaiting("");
    this.element.querySelector(":scope > .error")?.remove();
    if (node.error !== null) {
      this.element.insertBefore(this.#errorLine(), this.element.querySelector(":scope > .figures"));
    }
    if (node.reasoning !== "") this.#reasoning.querySelector("summary").textContent = words.chat.reasoning;
    if (node.toolCalls.length > 0) this.#tools.finish();
    this.showActions();
  }

  /** What is being waited for, before the first token; an empty text for nothing. */
  setWaiting(text) {
    let line = this.element.querySelector(":scope > .waiting");
    if (text === "") {
      line?.remove();
      return;
    }
    if (line === null) {
      line = make("p", "waiting");
      this.#content.after(line); // below what is written so far, where the reader is
    }
    line.textContent = text;
  }

  /** Which of its branches the message is, where that has changed. */
  showBranches() {
    if (this.#branchesOf(this.#actions.siblings(this.node)) !== this.#branches) this.showActions();
  }

  /** The buttons below the message, and which of its branches it is. */
  showActions() {
    const { node } = this;
    const foot = this.element.querySelector(":scope > .foot");
    const hadFocus = foot.contains(document.activeElement) ? document.activeElement.dataset.action : null;
    const buttons = [];
    const siblings = this.#actions.siblings(node);
    this.#branches = this.#branchesOf(siblings);
    if (siblings.length > 1) buttons.push(this.#branchSwitch(siblings));
    const add = (action, label, run, title = label) => {
      const button = make("button", "small", label);
      button.title = title;
      button.dataset.action = action;
      button.addEventListener("click", run);
      buttons.push(button);
    };
    const { chat, common } = words;
    if (node.content !== "") add("copy", common.copy, (event) => copyText(node.content, event.currentTarget), chat.copyTitle);
    if (node.role !== "tool") add("edit", chat.edit, () => this.#edit(), chat.editTitle);
    if (node.role === "assistant" && node.finish !== null) {
      add("regenerate", chat.regenerate, () => this.#actions.regenerate(node), chat.regenerateTitle);
      if (OPEN_ENDS.includes(node.finish) && node.content !== "" && node.toolCalls.length === 0) {
        add("continue", chat.continue, () => this.#actions.continue(node), chat.continueTitle);
      }
      add("source", this.#isSource ? chat.formatted : chat.source, () => this.#toggleSource(), chat.sourceTitle);
      add("tokens", chat.inspect, () => this.#actions.inspect(node), chat.inspectTitle);
    }
    if (node.finish !== null) add("fork", chat.fork, () => this.#actions.fork(node), chat.forkTitle);
    add("remove", common.delete, () => this.#actions.remove(node), chat.deleteTitle);
    foot.replaceChildren(...buttons);
    if (hadFocus) foot.querySelector(`[data-action="${hadFocus}"]`)?.focus();
  }

  #foot() {
    const foot = make("div", "foot");
    foot.setAttribute("role", "group");
    foot.setAttribute("aria-label", words.chat.thisMessage);
    queueMicrotask(() => this.showActions());
    return foot;
  }

  /** The server's sentence; where the context is full, with ways out. */
  #errorLine() {
    const line = make("div", "error", this.node.error);
    line.setAttribute("role", "alert");
    if (/maximum context length|body is larger than/.test(this.node.error)) {
      const ways = make("div", "actions");
      for (const [label, run] of [[words.composer.shorten, this.#actions.shorten], [words.composer.newChat, this.#actions.create]]) {
        const button = make("button", "small", label);
        button.addEventListener("click", run);
        ways.append(button);
      }
      line.append(ways);
    }
    return line;
  }

  #branchesOf(siblings) {
    return `${siblings.indexOf(this.node)} ${siblings.length}`;
  }

  #branchSwitch(siblings) {
    const at = siblings.indexOf(this.node);
    const group = make("span", "branches");
    const step = (label, name, to) => {
      const button = make("button", "small", label);
      button.setAttribute("aria-label", name);
      button.dataset.action = name;
      button.disabled = siblings[to] === undefined;
      button.addEventListener("click", () => this.#actions.show(siblings[to].id));
      return button;
    };
    const place = make("span", "place", `${at + 1}/${siblings.length}`);
    group.append(step("‹", words.chat.previousBranch, at - 1), place, step("›", words.chat.nextBranch, at + 1));
    return group;
  }

  #showReasoning() {
    if (this.#reasoning === null) {
      this.#reasoning = make("details", "reasoning");
      this.#reasoning.append(make("summary", "", this.node.finish === null ? `${words.chat.reasoning}…` : words.chat.reasoning), make("div"));
      this.element.insertBefore(this.#reasoning, this.#content);
    }
    const body = this.#reasoning.lastElementChild;
    body.append(this.node.reasoning.slice(body.textContent.length));
  }

  #showCalls() {
    if (this.#tools === null) {
      this.#tools = new ToolCards(this.node, {
        results: () => this.#actions.resultsOf(this.node),
        send: (results) => this.#actions.answerCalls(this.node, results),
        runner: this.#actions.runnerOf,
        isAllowed: this.#actions.isAllowed,
        allow: this.#actions.allow,
        run: this.#actions.run,
        isRunning: this.#actions.isRunning,
      });
      this.element.insertBefore(this.#tools.element, this.element.querySelector(":scope > .figures"));
    }
    this.#tools.update();
  }

  #toggleSource() {
    this.#isSource = !this.#isSource;
    this.element.classList.toggle("source", this.#isSource);
    this.#showWhole();
    if (!this.#isSource) this.#markdown.end();
    this.showActions();
  }

  #showWhole() {
    this.#content.replaceChildren();
    this.#numShown = this.node.content.length;
    if (this.#isSource) {
      this.#content.textContent = this.node.content;
    } else {
      this.#markdown = new MarkdownView(this.#content);
      this.#markdown.append(this.node.content);
    }
  }

  #edit() {
    if (this.element.querySelector(".editor") !== null) return;
    const form = make("form", "editor");
    const field = make("textarea");
    field.value = this.node.content;
    field.setAttribute("aria-label", words.chat.editMessage);
    field.rows = Math.min(14, Math.max(2, this.node.content.split("\n").length));
    const save = make("button", "primary", this.node.role === "user" ? words.composer.send : words.common.save);
    save.type = "submit";
    const cancel = make("button", "quiet", words.common.cancel);
    const close = () => {
      form.remove();
      this.#content.hidden = false;
      this.element.querySelector("[data-action=edit]")?.focus();
    };
    cancel.addEventListener("click", close);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim() === "") return;
      close();
      this.#actions.edit(this.node, field.value);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        form.requestSubmit();
      }
    });
    const buttons = make("div", "actions");
    buttons.append(save, cancel);
    form.append(field, buttons);
    this.#content.hidden = true;
    this.#content.after(form);
    field.focus();
  }
}

function fileOf({ name, text }) {
  const file = make("details", "attached");
  file.append(make("summary", "", name), make("pre", "", text));
  return file;
}

/** A button with the picture, which shows it larger. */
function pictureOf(attachment) {
  const button = make("button", "picture");
  button.title = words.attachments.show(attachment.name);
  const picture = make("img");
  picture.src = attachment.url;
  picture.alt = attachment.name;
  picture.decoding = "async";
  button.append(picture);
  button.addEventListener("click", () => showPicture(attachment));
  return button;
}

/** Copies a block of code, or shows how it looks, where its button is pressed; for the element that holds all messages. */
export function actOnCode(log, onLost) {
  log.addEventListener("click", async (event) => {
    const button = event.target.closest(".code-head button");
    if (button === null) return;
    const text = button.closest(".code").querySelector("pre").textContent;
    if (button.classList.contains("copy")) copyText(text, button);
    else await import("../page/html_preview.js").then(({ showPreview }) => showPreview(text), onLost);
  });
}

