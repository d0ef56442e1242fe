/**
 * The playground: puts the parts together. A room imports from itself and from those below it:
 *
 *   views/      the tab of tokens: answers token by token, compared, timed and as they were sent
 *   engine/     the tab that shows the engine at work
 *   panels/     the story and the chat, each with the buttons that start and stop an answer
 *   answer/     one answer: what its chunks bring, its sentences, its figures
 *   markdown/   from an answer's text to elements, block by block as it arrives
 *   parameters/ every parameter with its control, presets, tools, schemas
 *   store/      conversations: trees of messages, kept in the browser
 *   attachments/ files that go with a message, read as text
 *   page/       the document: elements, tabs, and the reader's settings
 *   transport/  the server: its state, and the ways in which an answer comes from it
 */

import { Admin } from "./engine/admin.js";
import { EngineView } from "./engine/engine_view.js";
import { readParameters, sentParameters } from "./parameters/catalogue.js";
import { ParameterPanel } from "./parameters/panel.js";
import { Presets } from "./parameters/presets.js";
import { readSchema, readTools } from "./parameters/structure.js";
import { Controls } from "./page/controls.js";
import { Palette } from "./page/palette.js";
import { announce, byId } from "./page/dom.js";
import { loadSettings, samplingOf, saveSettings } from "./page/settings.js";
import { Tabs } from "./page/tabs.js";
import { Chat } from "./panels/chat.js";
import { Story } from "./panels/story.js";
import { ApiKey } from "./transport/api_key.js";
import { IndexedDatabase, MemoryDatabase } from "./store/database.js";
import { conversationOf } from "./store/adopted.js";
import { Library } from "./store/library.js";
import { Workbench } from "./views/workbench.js";
import { ConnectionLost, ServerError } from "./transport/errors.js";
import { Server } from "./transport/server.js";
import { ServerState } from "./transport/server_state.js";

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
const stored = loadSettings(storage);
const controls = new Controls({ ...stored, extra: readParameters(stored.extra) }, (settings) => saveSettings(storage, settings));

const tabStorage = () => window.sessionStorage;
const own = new Server(new URL(".", location.href).href.replace(/\/$/, ""), tabStorage, "eagre.api-key");
const { fetch: keyedFetch, transports } = own;
const peers = new Map(byId("peers").content.split(" ").filter((url) => url !== "").map((url) => [url, new Server(url, tabStorage)]));

/** The chosen transport, or SSE for what the Responses API has no words for. */
function transportFor(task) {
  const { transport } = controls.settings;
  const isOnlyChat = "messages" in task && !task.continue_final_message;
  return transports[transport === "responses" && !isOnlyChat ? "sse" : transport];
}

const server = new ServerState(showServer, { fetch: keyedFetch, chosen: controls.settings.model });

/** The parameters of a completion; a seed is drawn here, so that each answer can be had again. */
function sampling() {
  return { ...firstParameters(), ...sentParameters(controls.settings.extra, false) };
}

/** The parameters of a chat. */
function chatParameters() {
  const { extra, toolsText, toolChoice, schemaText } = controls.settings;
  const parameters = { ...firstParameters(), ...sentParameters(extra, true) };
  const tools = readTools(toolsText).value;
  if (tools !== null) Object.assign(parameters, { tools, tool_choice: toolChoice });
  const schema = readSchema(schemaText).value;
  if (schema !== null) {
    parameters.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  }
  return parameters;
}

function firstParameters() {
  const first = samplingOf(controls.settings);
  first.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
  return server.model === null ? first : { model: server.model.id, ...first };
}

const deps = {
  transport: transportFor,
  transportOf: (name) => transports[name],
  parameters: chatParameters,
  sampling,
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
const adminKey = new ApiKey(tabStorage, "eagre.admin-key");
// An administrator sees the ids of all requests, a client those of its own.
const engineFetch = (url, options) => (adminKey.value === "" ? keyedFetch : adminKey.over(fetch.bind(globalThis)))(url, options);
const engine = new EngineView({ fetch: engineFetch, admin: new Admin(adminKey), model: () => server.model?.id, onOpen: openRequest });
const parameterPanel = new ParameterPanel(controls, new Presets(storage), keyedFetch);
const panels = { story: new Story(deps, tabStorage), chat: new Chat(deps, library, tabStorage), engine };
const workbench = new Workbench({
  serverOf: (origin) => peers.get(origin) ?? own,
  peers: [...peers.keys()],
  parameters: (isChat) => (isChat ? chatParameters() : sampling()),
  model: () => server.model,
  models: () => server.models,
  transport: () => (controls.settings.transport === "websocket" ? "websocket" : "sse"), // the two that columns have
  canGenerate: deps.canGenerate,
  hasSeed: () => controls.settings.seed !== null,
  restore: restoreParameters,
});
panels.tokens = workbench;
panels.chat.actions.push({
  label: "Tokens",
  run: (node) => {
    workbench.openNode(node);
    tabs.select("tokens");
  },
});

/** Takes over the parameters of a request, of a link or of another client. */
function restoreParameters(given, isChat) {
  if (typeof given.model === "string") chooseModel(given.model);
  controls.restore(given);
  parameterPanel.restore(given, isChat);
}

/** Shows what another client has asked, as it is, in the chat or the story. */
function openRequest(record) {
  const { prompts: [asked], parameters } = record.request;
  restoreParameters(parameters, asked.messages !== undefined);
  if (asked.messages === undefined) {
    tabs.select("story");
    panels.story.open(typeof asked.prompt === "string" ? asked.prompt : (record.prompts[0]?.text ?? ""));
    return;
  }
  tabs.select("chat");
  const { system, nodes } = conversationOf(record);
  panels.chat.adopt(system, nodes);
}

/** Whose answers, and whose engine, are shown from now on. */
function chooseModel(name) {
  controls.change({ model: name });
  server.choose(name);
  engine.reopen();
}

/** Offers the server's models where it has several. */
function offerModels({ models, model }) {
  byId("model-setting").hidden = models.length < 2;
  byId("model").replaceChildren(...models.map((name) => new Option(name, name)));
  byId("model").value = model?.id ?? "";
  workbench.offerModels(models);
}

function showServer({ name, detail, model }) {
  const words = name === "unwell" && detail !== "" ? detail : STATE_WORDS[name];
  if (byId("server").dataset.state !== name) announce(words);
  byId("server").dataset.state = name;
  byId("server-state").textContent = words;
  byId("server-stage").textContent = name === "loading" ? (STAGE.exec(detail)?.[1] ?? "") : "";
  byId("server-model").textContent = name === "loading" ? "" : (model?.id ?? "");
  offerModels(server);
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

byId("api-key").value = own.key.value;
byId("key-setting").hidden = own.key.value === "";
byId("api-key").addEventListener("change", () => {
  own.changeKey(byId("api-key").value);
  server.forget();
  server.check();
});

for (const id of ["tools", "schema"]) {
  const dialog = byId(`${id}-dialog`);
  byId(`${id}-open`).addEventListener("click", () => dialog.showModal());
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
}

byId("model").addEventListener("change", () => chooseModel(byId("model").value));

const tabs = new Tabs(byId("tabs"), (mode) => {
  controls.change({ mode });
  document.body.dataset.mode = mode;
  engine.isShown = mode === "engine";
});
tabs.select(workbench.takeSetup() ? "tokens" : controls.settings.mode);

const isChat = () => controls.settings.mode === "chat";
new Palette().add(
  ...[...byId("tabs").children].map((tab) => ({ name: `Go to ${tab.textContent}`, run: () => tabs.select(tab.dataset.mode) })),
  { name: "Stop the answer", run: () => panels[controls.settings.mode].stop?.() },
  { name: "Conversation: new", run: () => (tabs.select("chat"), panels.chat.create()) },
  { name: "Conversation: open, search, export, import", run: () => (tabs.select("chat"), panels.chat.showList()) },
  { name: "Answer: again", run: () => panels.chat.regenerateLast(), isOffered: isChat },
  { name: "Question: edit the last one", run: () => panels.chat.editLast(), isOffered: isChat },
  { name: "Attach files", run: () => byId("chat-attach").click(), isOffered: isChat },
  { name: "System prompt", run: () => panels.chat.editSystem(), isOffered: isChat },
  ...[...document.querySelectorAll("input[name=transport]")].map((radio) => ({
    name: `Transport: ${radio.parentElement.textContent}`, run: () => radio.click(),
  })),
  { name: "Tools", run: () => byId("tools-dialog").showModal() },
  { name: "JSON schema of the answer", run: () => byId("schema-dialog").showModal() },
  { name: "All parameters", run: () => {
    showSettings(true);
    byId("more-parameters").open = true;
    byId("more-parameters").querySelector("summary").focus();
  } },
  { name: "Documentation of the server's routes", run: () => location.assign("docs") },
);

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
