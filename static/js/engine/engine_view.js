/** The engine at work: figures, slots, pages, the two lanes, a bar for each request, and what an operator may do. */

import { announce, byId, make } from "../page/dom.js";
import { colourOf, onTheme } from "../page/theme.js";
import { words } from "../words/words.js";
import { Admin } from "./admin.js";
import { AdminKeyField } from "./admin_key_field.js";
import { EngineEvents } from "./engine_events.js";
import { KeyUsage } from "./key_usage.js";
import { Steps, drawLanes } from "./lanes.js";
import { ModelFetcher } from "./model_fetcher.js";
import { ModelList } from "./model_list.js";
import { STATES, drawMap, parseMap } from "./page_map.js";
import { RequestBars, partsOf } from "./request_bars.js";
import { RequestList } from "./request_list.js";
import { SlotTable } from "./slot_table.js";

const MAP_HEIGHT = 230; // pixels, at most
const BARS = 12; // shown at a time
const BAR_SPAN = 20_000; // milliseconds
const LABEL_INTERVAL = 5000; // milliseconds between two sentences about a picture, for readers who do not see it
const UNKNOWN = "–";
const MOST_NAMED = 6; // requests of the queue

export class EngineView {
  #admin;
  #keyField;
  #model;
  #lists; // what is asked for while the page is shown
  #models;
  #onState;
  #stream;
  #steps = new Steps();
  #bars = new RequestBars();
  #slots = new SlotTable(byId("engine-slots"));
  #map = byId("engine-map").getContext("2d");
  #lanes = byId("engine-lanes").getContext("2d");
  #event = null;
  #before = null; // an event about a second ago, for rates
  #frame = null;
  #isHeld = false; // the reader looks at one moment
  #isShown = false;
  #labelled = -Infinity;

  /**
   * @param {{fetch: typeof fetch, adminKey: {value: string}, model: () => string|undefined,
   *   onOpen: (record: object) => void, onState?: () => void}} deps `model` names the model whose engine is shown, `onOpen`
   *   takes a client's request elsewhere, `onState` hears that a model or an engine has another state
   */
  constructor({ fetch, adminKey, model, onOpen, onState = () => undefined }) {
    const admin = new Admin(adminKey);
    this.#admin = admin;
    this.#model = model;
    this.#onState = onState;
    const tell = (text, isTrouble) => this.#tell(text, isTrouble);
    const models = new ModelList({ fetch, admin, tell, onChange: onState });
    const fetcher = new ModelFetcher({ admin, tell, onServe: (model) => models.load(model) });
    const usage = new KeyUsage(admin);
    byId("engine-pictures").before(models.element, fetcher.element, usage.element);
    this.#models = models;
    byId("engine-idle").parentElement.title = words.engine.idleTitle;
    this.#lists = [new RequestList(admin, onOpen), models, fetcher, usage];
    this.#stream = new EngineEvents({
      fetch,
      onEvent: (event) => this.#receive(event),
      onTrouble: (error) => this.#tell(error.message, true, "stream"),
      model,
    });
    this.#keyField = new AdminKeyField(byId("engine-key"), byId("engine-key").parentElement, admin, () => this.takeKey());
    for (const button of document.querySelectorAll("#engine-actions [data-call]")) {
      button.addEventListener("click", () => this.#call(button.dataset.call, button.textContent));
    }
    byId("engine-trace").addEventListener("click", () => this.#saveTrace());
    byId("engine-hold").addEventListener("click", () => {
      this.#isHeld = !this.#isHeld;
      byId("engine-hold").setAttribute("aria-pressed", String(this.#isHeld));
      this.#draw();
    });
    document.addEventListener("visibilitychange", () => this.#follow());
    new ResizeObserver(() => this.#draw()).observe(byId("engine-pictures"));
    onTheme(() => this.#draw());
  }

  /** The stream lasts while its tab is shown. */
  set isShown(isShown) {
    this.#isShown = isShown;
    this.#follow();
  }

  /** The administrator's key is another one. */
  takeKey() {
    this.#keyField.show();
    this.reopen(); // an administrator sees the ids of all requests
    for (const list of this.#lists) list.follow();
  }

  /** Follows anew: another model is shown, or another reader looks. */
  reopen() {
    this.#stream.close();
    // Counters, clocks and ids of two engines have nothing to do with each other.
    this.#event = this.#before = null;
    this.#labelled = -Infinity;
    this.#steps = new Steps();
    this.#bars = new RequestBars();
    this.#follow();
  }

  focus() {
    byId("engine-hold").focus({ preventScroll: true });
  }

  /** Leads to the models; who has given no administrator's key finds its field open. */
  showModels() {
    const operator = byId("engine-key").closest("details");
    const hasKey = this.#admin.key.value !== "";
    operator.open ||= !hasKey;
    (hasKey ? this.#models.element : operator).scrollIntoView({ block: "start" });
    this.#models.focus();
  }

  stop() {}

  #follow() {
    if (this.#isShown && !document.hidden) this.#stream.open();
    else this.#stream.close();
    for (const list of this.#lists) list.isShown = this.#isShown && !document.hidden;
  }

  #receive(event) {
    if (byId("engine-message").dataset.kind === "stream") this.#tell("");
    if (this.#event !== null && event.state !== this.#event.state) {
      this.#models.follow();
      this.#onState();
    }
    this.#steps.add(event.steps);
    this.#bars.add(event);
    if (this.#before === null || event.now_ms - this.#before.now_ms > 1000 || event.now_ms < this.#before.now_ms) {
      this.#before = this.#event ?? event;
    }
    this.#event = event;
    if (!this.#isHeld) this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
    const event = this.#event;
    const width = byId("engine-pictures").clientWidth;
    if (event === null || width === 0) return;
    this.#showFigures(event);
    this.#slots.show(event);
    drawMap(this.#map, parseMap(event.pages.map), width, MAP_HEIGHT, STATES.map((state) => colourOf(`--page-${state}`)));
    drawLanes(this.#lanes, this.#steps, width, {
      schedule: colourOf("--lane-schedule"), dispatch: colourOf("--lane-dispatch"), wait: colourOf("--lane-wait"),
      commit: colourOf("--lane-commit"), step: colourOf("--lane-step"), step2: colourOf("--lane-step2"), idle: colourOf("--warn"),
      onStep: colourOf("--ink"), text: colourOf("--soft"), line: colourOf("--tint"),
    });
    this.#showBars(event.now_ms);
    if (event.now_ms - this.#labelled > LABEL_INTERVAL || event.now_ms < this.#labelled) {
      this.#labelled = event.now_ms;
      const idle = this.#idleOf(event);
      this.#map.canvas.setAttribute("aria-label", words.engine.map(event.pages));
      this.#lanes.canvas.setAttribute("aria-label", `${words.engine.lanes(this.#steps.length)}${idle === null ? "" : words.engine.idleFor(idle)}.`);
    }
  }

  #showFigures(event) {
    const { prefix_cache_hits: hits, prefix_cache_queries: queries } = event;
    const seconds = (event.now_ms - this.#before.now_ms) / 1000;
    const rate = (name) => (seconds > 0 ? Math.round((event[name] - this.#before[name]) / seconds) : 0);
    const figures = {
      state: words.engine.states[event.state] ?? event.state,
      running: words.engine.runningOf(event.num_running, event.num_slots),
      waiting: event.num_waiting,
      tokens: words.engine.perSecond(rate("num_generation_tokens")),
      steps: words.engine.perSecond(rate("num_steps")),
      hits: queries === 0 ? UNKNOWN : percent(hits / queries),
      pages: event.pages.total === 0 ? UNKNOWN : percent(event.pages.active / event.pages.total),
      idle: this.#idleOf(event) ?? UNKNOWN,
    };
    for (const [name, value] of Object.entries(figures)) byId(`engine-${name}`).textContent = String(value);
    byId("engine-queue").textContent = describeQueue(event);
    byId("engine-slots-title").textContent = this.#slots.length < event.num_slots
      ? words.engine.someSlots(this.#slots.length, event.num_slots) : words.engine.slots;
  }

  /** How long the device stood idle while work waited; null while nothing is computed, because then nobody knows. */
  #idleOf(event) {
    return event.num_steps > this.#before.num_steps ? percent(event.device_idle_fraction) : null;
  }

  #showBars(now) {
    const list = byId("engine-bars");
    const all = this.#bars.bars;
    const bars = all.slice(0, BARS);
    list.previousElementSibling.textContent = all.length > bars.length ? words.engine.someBars(bars.length, all.length) : words.engine.bars;
    while (list.children.length < bars.length) list.append(makeBar());
    while (list.children.length > bars.length) list.lastChild.remove();
    bars.forEach((bar, at) => showBar(list.children[at], bar, now));
  }

  async #call(name, label) {
    this.#tell(words.engine.calling(label));
    try {
      const answer = await this.#admin.call(name, { model: this.#model() });
      this.#tell(answer.state === undefined ? words.engine.cacheReset : words.engine.isNow(words.engine.states[answer.state] ?? answer.state));
    } catch (error) {
      this.#tell(error.message, true);
    }
  }

  async #saveTrace() {
    try {
      const link = make("a");
      link.href = URL.createObjectURL(await this.#admin.trace(this.#model()));
      link.download = "eagre-trace.json";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      this.#tell(words.engine.traceSaved);
    } catch (error) {
      this.#tell(error.message, true);
    }
  }

  /** @param {string} source "stream" for what is over when the stream goes on */
  #tell(text, isTrouble = false, source = "") {
    const message = byId("engine-message");
    if (message.textContent === text) return;
    message.textContent = text;
    message.dataset.kind = source;
    message.classList.toggle("error", isTrouble);
    if (text !== "") announce(text);
  }
}

function describeQueue({ state, queue, num_waiting: numWaiting }) {
  const held = words.engine.held[state];
  if (held !== undefined) return `${held} ${numWaiting === 0 ? words.engine.queueEmpty : words.engine.queueOf(numWaiting)}`;
  if (queue.length === 0) return words.engine.queueEmpty;
  const named = queue.slice(0, MOST_NAMED);
  return words.engine.next(named.map(({ id, prompt }) => `${id ?? words.engine.unnamed} (${prompt})`).join(", "), named.length, numWaiting);
}

function makeBar() {
  const item = make("li", "bar");
  item.append(make("span", "bar-name"), make("span", "bar-line"), make("span", "bar-words"));
  return item;
}

function showBar(item, bar, now) {
  const [name, line, text] = item.children;
  name.textContent = bar.id ?? bar.key;
  name.title = name.textContent;
  text.textContent = describeBar(bar);
  item.classList.toggle("over", bar.ended !== null);
  const parts = partsOf(bar, now - BAR_SPAN, now);
  while (line.children.length < parts.length) line.append(make("span"));
  while (line.children.length > parts.length) line.lastChild.remove();
  parts.forEach(({ kind, from, to }, at) => {
    const part = line.children[at];
    part.className = kind;
    part.style.left = `${100 * from}%`;
    part.style.width = `${Math.max(100 * (to - from), 0.3)}%`;
  });
}

function describeBar(bar) {
  if (bar.admitted === null) return words.engine.barQueued(bar.prompt);
  return words.engine.bar(bar.prompt, bar.cached, bar.output);
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.0995 && share > 0 ? 1 : 0)} %`;
}
