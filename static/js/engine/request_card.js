/** One request of any client: its prompt as tokens, its answers, every event with its time, and a way to open it here. */

import { promptTokens } from "../answer/prompt_tokens.js";
import { byId, make } from "../page/dom.js";

const MOST_EVENTS = 300;

export class RequestCard {
  #dialog = byId("request-dialog");
  #card = byId("request-card");
  #onOpen;

  /** @param {(record: object) => void} onOpen */
  constructor(onOpen) {
    this.#onOpen = onOpen;
    this.#dialog.querySelector("[data-close]").addEventListener("click", () => this.#dialog.close());
  }

  /** @param {object} record of `GET /v1/requests/{id}` */
  show(record) {
    const open = make("button", "primary", "Open here");
    open.disabled = !record.request?.prompts.length;
    open.addEventListener("click", () => {
      this.#dialog.close();
      this.#onOpen(record);
    });
    const parts = [make("p", "note", factsOf(record).join(" · ")), open];
    if (record.error !== null) parts.push(make("p", "error", record.error.message));
    for (const { token_ids: ids, token_texts: texts, num_cached_tokens: numCached } of record.prompts) {
      const tokens = make("div", "prompt-tokens");
      tokens.append(...promptTokens(ids, texts, numCached));
      parts.push(make("h3", "", `The prompt: ${ids.length} tokens, ${numCached} from the cache`), scrolling(tokens, "The prompt"));
    }
    for (const answer of record.answers) parts.push(...answerParts(answer));
    if (record.request !== null) {
      const text = JSON.stringify({ asked: record.request.parameters, sampling: record.sampling }, null, 1);
      parts.push(make("h3", "", "Parameters"), scrolling(make("pre", "code", text), "Parameters"));
    }
    byId("request-title").textContent = record.id;
    this.#card.replaceChildren(...parts);
    if (!this.#dialog.open) this.#dialog.showModal();
  }
}

export function seconds(milliseconds) {
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}

function factsOf(record) {
  const facts = [record.state, record.tenant, record.model ?? record.route, new Date(1000 * record.created).toLocaleString()];
  const times = { "in the queue": record.queue_ms, "first token": record.first_token_ms, "in all": record.duration_ms };
  for (const [words, time] of Object.entries(times)) if (time !== null) facts.push(`${words} ${seconds(time)}`);
  return facts;
}

function answerParts({ index, token_ids: ids, token_texts: texts, events, finish_reason: finish }) {
  const tokens = make("div", "prompt-tokens");
  tokens.append(...promptTokens(ids, texts, 0));
  const list = make("ol", "raw-events");
  list.append(...events.slice(-MOST_EVENTS).map(([at, count]) => {
    const item = make("li");
    item.append(make("span", "at", `${at.toFixed(1)} ms`), `${count} ${count === 1 ? "token" : "tokens"}`);
    return item;
  }));
  const title = `Answer ${index + 1}: ${ids.length} tokens${finish === null ? "" : `, ${finish}`}`;
  const heading = events.length > MOST_EVENTS ? `Events: the last ${MOST_EVENTS} of ${events.length}` : `Events: ${events.length}`;
  return [make("h3", "", title), scrolling(tokens, title), make("h3", "", heading), scrolling(list, "Events")];
}

/** What scrolls can be reached by keys. */
function scrolling(element, label) {
  element.tabIndex = 0;
  element.setAttribute("role", element.tagName === "OL" ? "list" : "group");
  element.setAttribute("aria-label", label);
  return element;
}
