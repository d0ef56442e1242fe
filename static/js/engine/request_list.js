/** The last requests of all clients, for an administrator: a list that is asked for again while it is open. */

import { byId, make } from "../page/dom.js";
import { words } from "../words/words.js";
import { RequestCard, seconds } from "./request_card.js";

const INTERVAL = 2000; // milliseconds
const LIMIT = 25;

export class RequestList {
  #admin;
  #card;
  #details = byId("engine-requests");
  #body = byId("requests-body");
  #note = byId("requests-note");
  #timer = null;
  #isShown = false;
  #before = null; // the number of the first request of the page that is looked at; null: the newest
  #text = "";

  /** @param {import("./admin.js").Admin} admin @param {(record: object) => void} onOpen takes a request elsewhere */
  constructor(admin, onOpen) {
    this.#admin = admin;
    this.#card = new RequestCard(onOpen);
    this.#details.addEventListener("toggle", () => this.follow());
    byId("requests-older").addEventListener("click", () => this.#turn(this.#body.lastElementChild?.dataset.number));
    byId("requests-newest").addEventListener("click", () => this.#turn());
  }

  set isShown(isShown) {
    this.#isShown = isShown;
    this.follow();
  }

  /** Asks now, and again while the list is open. */
  follow() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#isShown && this.#details.open) this.#ask();
  }

  #turn(before = null) {
    this.#before = before;
    this.follow();
  }

  async #ask() {
    const timer = (this.#timer = setTimeout(() => this.#ask(), INTERVAL));
    const page = this.#before === null ? "" : `&before=${this.#before}`;
    try {
      const answer = await this.#admin.read(`/v1/requests?limit=${LIMIT}${page}`);
      if (timer === this.#timer) this.#show(answer);
    } catch (error) {
      if (timer !== this.#timer) return;
      this.#note.textContent = error.message;
      if (error.status >= 400) clearTimeout(timer); // it stays so until the key, or the server, is another
    }
  }

  #show({ data, has_more: hasMore, num_bytes: numBytes }) {
    this.#note.textContent = data.length === 0 ? words.requests.none : words.requests.kept((numBytes / 1e6).toFixed(1));
    byId("requests-older").disabled = !hasMore;
    byId("requests-newest").disabled = this.#before === null;
    const text = JSON.stringify(data);
    if (text === this.#text) return; // nobody's focus is taken away for nothing
    this.#text = text;
    const focused = document.activeElement?.closest?.("#requests-body tr")?.dataset.number;
    this.#body.replaceChildren(...data.map((request) => this.#row(request)));
    this.#body.querySelector(`tr[data-number="${focused}"] button`)?.focus();
  }

  #row(request) {
    const row = make("tr");
    row.dataset.number = request.number;
    const open = make("button", "small", request.id ?? "–");
    open.addEventListener("click", () => this.#open(request));
    open.title = open.textContent;
    const id = make("th");
    id.scope = "row";
    id.append(open);
    const { num_prompt_tokens: prompt, num_cached_tokens: cached } = request;
    row.append(
      id,
      make("td", request.error === null ? "" : "invalid", request.state),
      make("td", "wide-cell", `${request.tenant}, ${request.model ?? request.route}`),
      make("td", "number", `${prompt}${cached > 0 ? ` (${cached})` : ""}`),
      make("td", "number", String(request.num_output_tokens)),
      make("td", "number", seconds(request.duration_ms)),
    );
    return row;
  }

  async #open({ id, number }) {
    try {
      this.#card.show(await this.#admin.read(`/v1/requests/${encodeURIComponent(id)}?number=${number}`));
    } catch (error) {
      this.#note.textContent = error.message;
    }
  }
}
