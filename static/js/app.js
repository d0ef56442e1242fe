/**
 * The playground: puts the parts together. A room imports from itself and from those below it:
 *
 *   views/      the tab of tokens: answers token by token, compared, timed and as they were sent
 *   engine/     the tab that shows the engine at work
 *   panels/     the story and the chat, each with the buttons that start and stop an answer
 *   answer/     one answer: what its chunks bring, its sentences, its figures
 *   markdown/   from an answer's text to elements, block by block as it arrives
 *   store/      conversations: trees of messages, kept in the browser
 *   page/       the document: elements, tabs, and the reader's settings
 *   transport/  the server: its state, and the ways in which an answer comes from it
 */

import { Admin } from "./engine/admin.js";
import { EngineView } from "./engine/engine_view.js";
import { Controls } from "./page/controls.js";
import { announce, byId } from "./page/dom.js";
import { loadSettings, samplingOf, saveSettings } from "./page/settings.js";
import { Tabs } from "./page/tabs.js";
import { Chat } from "./panels/chat.js";
import { Story } from "./panels/story.js";
import { ApiKey } from "./transport/api_key.js";
import { IndexedDatabase, MemoryDatabase } from "./store/database.js";
import { Library } from "./store/library.js";
import { Workbench } from "./views/workbench.js";
import { ConnectionLost, ServerError } from "./transport/errors.js";
import { ResponsesTransport } from "./transport/responses_transport.js";
import { ServerState } from "./transport/server_state.js";
import { StreamSocket } from "./transport/stream_socket.js";
import { SocketTransport, SseTransport } from "./transport/transport.js";

const STATE_WORDS = {
  connecting: "connecting…",
  loading: "loading the model…",
  ready: "ready",
  locked: "needs an API key",
  unwell: "not available",
  lost: "server lost, trying again…",
};
const STAGE = /\(([^()]+)\)$/; // at the end of the server's sentence on its loading

const storage = () => window.localStorage; // even naming it throws where cookies are blocked
const controls = new Controls(loadSettings(storage), (settings) => saveSettings(storage, settings));

const socketUrl = (path) => {
  const url = new URL(path, location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
};
const apiKey = new ApiKey(() => window.sessionStorage);
const keyedFetch = apiKey.over(globalThis.fetch.bind(globalThis));
const protocols = () => apiKey.protocols;
const streamSocket = new StreamSocket({ url: socketUrl("/v1/stream"), protocols });
const transports = {
  sse: new SseTransport({ fetch: keyedFetch }),
  websocket: new SocketTransport(streamSocket),
  responses: new ResponsesTransport({ url: socketUrl("/v1/responses"), protocols }),
};
for (const [name, transport] of Object.entries(transports)) transport.name = name;

/** The chosen transport, or SSE for what the Responses API has no words for. */
function transportFor(task) {
  const { transport } = controls.settings;
  const isOnlyChat = "messages" in task && !task.continue_final_message;
  return transports[transport === "responses" && !isOnlyChat ? "sse" : transport];
}

const server = new ServerState(showServer, { fetch: keyedFetch });

/** The parameters of a request; a seed is drawn here, so that each answer can be had again. */
function parameters() {
  const sampling = samplingOf(controls.settings);
  sampling.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
  return server.model === null ? sampling : { model: server.model.id, ...sampling };
}

const deps = {
  transport: transportFor,
  transportOf: (name) => transports[name],
  parameters,
  sampling: parameters,
  system: () => controls.settings.system,
  setSystem: (system) => controls.setSystem(system),
  model: () => server.model,
  fetch: keyedFetch,
  // A lost server may be back before we notice: trying is how to find out.
  canGenerate: () => server.name !== "connecting" && server.name !== "loading",
  onError: (error) => {
    // A browser does not say why a socket was refused; the state tells whether a key is missing.
    if (error instanceof ConnectionLost) server.check();
    if (error instanceof ServerError && error.status === 401) askForKey();
  },
};
const library = IndexedDatabase.open().catch(() => new MemoryDatabase()).then((database) => new Library(database));
const adminKey = new ApiKey(() => window.sessionStorage, "eagre.admin-key");
// An administrator sees the ids of all requests, a client those of its own.
const engineFetch = (url, options) => (adminKey.value === "" ? keyedFetch : adminKey.over(fetch.bind(globalThis)))(url, options);
const engine = new EngineView({ fetch: engineFetch, admin: new Admin(adminKey) });
const panels = { story: new Story(deps), chat: new Chat(deps, library, () => window.sessionStorage), engine };
const workbench = new Workbench({
  transportOf: (name) => transports[name],
  parameters,
  model: () => server.model,
  models: () => server.models,
  fetch: keyedFetch,
  canGenerate: deps.canGenerate,
  restore: (given) => controls.restore(given),
});
panels.tokens = workbench;
panels.chat.actions.push({
  label: "Tokens",
  run: (node) => {
    workbench.openNode(node);
    tabs.select("tokens");
  },
});

function showServer({ name, detail, model }) {
  const words = name === "unwell" && detail !== "" ? detail : STATE_WORDS[name];
  if (byId("server").dataset.state !== name) announce(words);
  byId("server").dataset.state = name;
  byId("server-state").textContent = words;
  byId("server-stage").textContent = name === "loading" ? (STAGE.exec(detail)?.[1] ?? "") : "";
  byId("server-model").textContent = name === "loading" ? "" : (model?.id ?? "");
  if (model?.max_model_len) controls.limitTokens(model.max_model_len);
  if (name === "locked" && byId("key-setting").hidden) askForKey();
  byId("story-continue").disabled = byId("chat-send").disabled = !deps.canGenerate();
}

/** Opens the settings at the field of the key, which is shown from now on. */
function askForKey() {
  byId("key-setting").hidden = false;
  showSettings(true);
  byId("api-key").focus();
}

function showSettings(isOpen) {
  document.body.classList.toggle("settings-open", isOpen);
  byId("settings-toggle").setAttribute("aria-expanded", String(isOpen));
}

byId("api-key").value = apiKey.value;
byId("key-setting").hidden = apiKey.value === "";
byId("api-key").addEventListener("change", () => {
  apiKey.value = byId("api-key").value;
  streamSocket.close(); // it was opened with the old key
  server.forget();
  server.check();
});

const tabs = new Tabs(byId("tabs"), (mode) => {
  controls.change({ mode });
  document.body.dataset.mode = mode;
  engine.isShown = mode === "engine";
});
tabs.select(workbench.hasSetup ? "tokens" : controls.settings.mode);

byId("settings-toggle").addEventListener("click", () => {
  showSettings(!document.body.classList.contains("settings-open"));
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && document.querySelector("dialog[open]") === null) panels[controls.settings.mode].stop();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) server.check();
});

showServer(server);
server.check();
if (matchMedia("(hover: hover)").matches) panels[controls.settings.mode].focus(); // no keyboard jumps up on a phone
