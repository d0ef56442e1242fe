/**
 * The page: puts the parts together. A room imports from itself and from those below it:
 *
 *   views/      answers token by token, timed and as they were sent: the inspector, and the page that compares
 *   engine/     the operator's page, which shows the engine at work
 *   panels/     the conversations: their list, the one that is shown, the answers that are being written
 *   answer/     one answer: what its chunks bring, its sentences, its figures
 *   markdown/   from an answer's text to elements, block by block as it arrives
 *   parameters/ every parameter with its control, presets, tools, schemas
 *   tools/      tools that run: clients of MCP servers, a calculator, the time
 *   store/      conversations: trees of messages, kept in the browser
 *   attachments/ files that go with a message: texts and pictures
 *   page/       the document: elements, address, theme, and the reader's settings
 *   transport/  the server: its state, and the ways in which an answer comes from it
 *   words/      every visible string, in English and in other languages
 */

import { readParameters, sentParameters } from "./parameters/catalogue.js";
import { Departures } from "./parameters/departures.js";
import { Hold } from "./parameters/hold.js";
import { ParameterPanel } from "./parameters/panel.js";
import { Presets } from "./parameters/presets.js";
import { readSchema, readTools } from "./parameters/structure.js";
import { Controls } from "./page/controls.js";
import { announce, byId } from "./page/dom.js";
import { setUpKeys } from "./page/keys.js";
import { Layout } from "./page/layout.js";
import { Palette } from "./page/palette.js";
import { NEW, Router, addressOf } from "./page/route.js";
import { loadSettings, samplingOf, saveSettings } from "./page/settings.js";
import { Theme } from "./page/theme.js";
import { Toast } from "./page/toast.js";
import { Chat } from "./panels/chat.js";
import { showServer } from "./panels/server_line.js";
import { Sidebar } from "./panels/sidebar.js";
import { conversationOf } from "./store/adopted.js";
import { IndexedDatabase, MemoryDatabase } from "./store/database.js";
import { Drafts } from "./store/drafts.js";
import { FORMATS } from "./store/formats.js";
import { Library, makeId, modelNameOf } from "./store/library.js";
import { ApiKey } from "./transport/api_key.js";
import { ConnectionLost, ServerError } from "./transport/errors.js";
import { Server } from "./transport/server.js";
import { ServerState } from "./transport/server_state.js";
import { Inspector } from "./views/inspector.js";
import { LANGUAGES, fillIn, languageOf, loadWords, words } from "./words/words.js";

const LANGUAGE = "eagre.language";
const MOST_OVER_SSE = 4; // answers at once: a browser opens six connections to a server, and the page needs one itself

const storage = () => window.localStorage; // even naming it throws where cookies are blocked
const tabStorage = () => window.sessionStorage;

/** The language that the reader has chosen; empty where the browser's counts. */
function chosenLanguage() {
  try {
    return storage().getItem(LANGUAGE) ?? "";
  } catch {
    return "";
  }
}

/** Shows the page in a language from now on; an empty one is the browser's. */
function chooseLanguage(language) {
  try {
    storage().setItem(LANGUAGE, language);
  } catch {
    return; // without a storage, the language is the browser's
  }
  location.reload();
}

/** The server's models as they came with the page; null where it has brought none, or lay in the browser's cache. */
function toldWithPage() {
  const { content } = byId("state");
  const isFresh = performance.getEntriesByType("navigation")[0]?.transferSize > 0;
  return content !== "" && isFresh ? JSON.parse(content) : null;
}

function start(language) {
  document.documentElement.lang = language;
  fillIn(document);
  const stored = loadSettings(storage);
  const departures = []; // one list for each form whose requests follow the settings
  const controls = new Controls({ ...stored, extra: readParameters(stored.extra) }, (settings) => {
    saveSettings(storage, settings);
    showDepartures();
  });
  const theme = new Theme(storage);
  const own = new Server(new URL(".", location.href).href.replace(/\/$/, ""), tabStorage, "eagre.api-key");
  const { fetch: keyedFetch, transports } = own;
  const peers = new Map(byId("peers").content.split(" ").filter((url) => url !== "").map((url) => [url, new Server(url, tabStorage)]));
  const server = new ServerState(() => showState(), {
    fetch: keyedFetch, wanted: [controls.settings.model], told: toldWithPage(), hasKey: () => own.key.value !== "",
  });
  const router = new Router((route) => show(route));

  /** The chosen transport, or SSE for what the Responses API has no words for, or a socket where SSE would take every connection. */
  function transportFor(task) {
    const { transport } = controls.settings;
    const isOnlyChat = "messages" in task && !task.continue_final_message;
    const name = transport === "responses" && !isOnlyChat ? "sse" : transport;
    return transports[name === "sse" && chat.answers.ids.length >= MOST_OVER_SSE ? "websocket" : name];
  }

  /** The parameters of a completion; a seed is drawn here, so that each answer can be had again. */
  function sampling(model = server.model) {
    return { ...firstParameters(model), ...sentParameters(controls.settings.extra, false), ...answerFormat() };
  }

  /** The parameters of a chat. */
  function chatParameters(model = server.model) {
    const { extra, toolsText, toolChoice } = controls.settings;
    const parameters = { ...firstParameters(model), ...sentParameters(extra, true), ...answerFormat() };
    const tools = readTools(toolsText).value;
    return tools === null ? parameters : { ...parameters, tools, tool_choice: toolChoice };
  }

  function answerFormat() {
    const schema = readSchema(controls.settings.schemaText).value;
    if (schema === null) return {};
    return { response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } } };
  }

  function firstParameters(model) {
    const first = samplingOf(controls.settings);
    first.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
    return model === null ? first : { model: model.id, ...first };
  }

  const toast = new Toast();
  const drafts = new Drafts(storage);
  // A lost server may be back before we notice: trying is how to find out.
  const canGenerate = (isOfChat = true) =>
    server.name !== "connecting" && server.name !== "loading" && parameterPanel.problem(isOfChat) === null;
  const library = IndexedDatabase.open().catch(() => new MemoryDatabase()).then((database) => new Library(database));
  const shared = {
    serverOf: (origin) => peers.get(origin) ?? own,
    peers: [...peers.keys()],
    model: () => server.model,
    models: () => server.models,
    transport: () => (controls.settings.transport === "websocket" ? "websocket" : "sse"), // the two that columns have
  };
  const inspector = new Inspector({
    ...shared, peers: [], asked: (node) => chat.asked(node), keep: (node, kept) => chat.keepBranch(node, kept),
  }, (isOpen) => layout.open(isOpen ? "inspector" : null));
  const layout = new Layout(storage, inspector);
  const chat = new Chat({
    transport: transportFor,
    transportOf: (name) => transports[name],
    parameters: chatParameters,
    sampling,
    system: () => controls.settings.system,
    setSystem: (system) => controls.setSystem(system),
    modelOf: (conversation) => server.first(modelsFor(conversation)),
    use: (conversation) => useModelOf(conversation),
    fetch: keyedFetch,
    canGenerate,
    onLost: () => server.check(),
    onError: (error) => {
      // A browser does not say why a socket was refused; the state tells whether a key is missing.
      if (error instanceof ConnectionLost) server.check();
      if (error instanceof ServerError && error.status === 401) askForKey();
    },
    router,
    toast,
    drafts,
    filesChanged: () => showHolds(),
    inspect: (node, isAsked) => (isAsked ? inspector.open(node) : inspector.follow(node)),
    changed: () => {
      sidebar.update();
      inspector.follow(chat.lastAnswer());
    },
  }, library, tabStorage);
  const sidebar = new Sidebar(library, {
    openId: () => chat.conversation?.id,
    isBusy: (id) => chat.answers.isBusy(id),
    load: (id) => chat.answers.load(id),
    removed: (id) => chat.removed(id),
    renamed: (id, title) => chat.renamed(id, title),
    opened: () => layout.closeSheets(),
    toast,
    drafts,
  });
  const adminKey = new ApiKey(tabStorage, "eagre.admin-key");
  // An administrator sees the ids of all requests, a client those of its own.
  const engineFetch = (url, options) => (adminKey.value === "" ? keyedFetch : adminKey.over(fetch.bind(globalThis)))(url, options);
  const parameterPanel = new ParameterPanel(controls, new Presets(storage), {
    fetch: keyedFetch, onChange: () => showHolds(), reveal: () => layout.open("settings"),
  });
  const panels = { chat, tokens: null, engine: null }; // the other two are loaded with their first visit
  let picker = null; // of models; it is loaded when it is first opened
  const parts = {
    tokens: async () => {
      const { Workbench } = await import("./views/workbench.js");
      return () => new Workbench({
        ...shared,
        parameters: (isChat) => (isChat ? chatParameters() : sampling()),
        canGenerate,
        hasSeed: () => controls.settings.seed !== null,
        restore: restoreParameters,
      });
    },
    engine: async () => {
      const { EngineView } = await import("./engine/engine_view.js");
      return () => new EngineView({
        fetch: engineFetch, adminKey, model: () => server.model?.id, onOpen: openRequest, onState: () => server.check(),
      });
    },
  };
  const isComparedChat = () => byId("tokens-kind").value === "chat";
  const holds = [
    new Hold(byId("story-form"), () => parameterPanel.problem(false)),
    new Hold(byId("chat-form"), () => parameterPanel.problem(true) ?? chat.problem),
    new Hold(byId("tokens-form"), () => parameterPanel.problem(isComparedChat())),
  ];
  for (const [form, isOfChat] of [["story-form", () => false], ["chat-form", () => true], ["tokens-form", isComparedChat]]) {
    departures.push(new Departures(byId(form), {
      list: () => parameterPanel.departures(isOfChat()),
      reset: (names) => parameterPanel.reset(names),
      reveal: (name) => parameterPanel.show(name),
    }));
  }
  byId("tokens-kind").addEventListener("change", () => {
    showHolds();
    showDepartures();
  });

  /** Shows what is set otherwise than the model recommends. */
  function showDepartures() {
    for (const shown of departures) shown.update();
  }

  /** Shows what keeps requests from being sent. */
  function showHolds() {
    for (const hold of holds) hold.update();
    byId("story-continue").disabled = !canGenerate(false);
    byId("chat-send").disabled = !canGenerate() || chat.problem !== null;
  }

  /** Shows the place that the address names. */
  async function show(route) {
    const { view } = route;
    const { hash } = location; // it may be another one when the page's part is there
    document.body.dataset.mode = view;
    for (const name of Object.keys(panels)) {
      byId(name).hidden = name !== view || panels[name] === null;
      byId(`tab-${name}`).toggleAttribute("aria-current", name === view);
      if (name === view) byId(`tab-${name}`).setAttribute("aria-current", "page");
    }
    if (panels.engine !== null) panels.engine.isShown = view === "engine";
    layout.showView(view);
    if (view === "chat") {
      await showConversation(route);
      useModelOf(chat.conversation); // on another page, another one may have been chosen
    }
    parameterPanel.isChat = !(view === "chat" && chat.conversation?.kind === "completion");
    byId("tab-chat").href = chat.conversation !== null && chat.conversation.tree.size > 0 ? addressOf(chat.conversation.id) : NEW.chat;
    if (view !== "chat") document.title = `${words.header[view === "tokens" ? "compare" : "engine"]} – Eagre`;
    if (panels[view] === null) await loadPart(view);
    if (document.body.dataset.mode !== view) return; // the reader has gone on meanwhile
    if (view === "tokens") panels.tokens?.takeSetup(hash);
    if (route.part === "models") panels.engine?.showModels();
    else if (matchMedia("(hover: hover)").matches) panels[view]?.focus?.(); // no keyboard jumps up on a phone
  }

  async function loadPart(name) {
    const make = await parts[name]().catch(() => null);
    if (make === null) {
      toast.show(words.engine.loadFailed);
      return;
    }
    panels[name] ??= make();
    const isShown = document.body.dataset.mode === name;
    byId(name).hidden = !isShown;
    if (name === "engine") panels.engine.isShown = isShown;
  }

  async function openPicker() {
    const part = picker ?? (await import("./engine/model_picker.js").catch(() => null));
    if (part === null) {
      toast.show(words.engine.loadFailed);
      return;
    }
    picker ??= new part.ModelPicker({
      fetch: engineFetch, adminKey, chosen: () => server.model?.id, choose: chooseModel, onState: () => server.check(),
      onKey: () => panels.engine?.takeKey(),
    });
    picker.open();
  }

  async function showConversation({ id, kind }) {
    if (id === undefined) {
      sidebar.endSearch();
      await chat.create(kind);
    } else if (!(await chat.open(id))) {
      router.rename(NEW.chat);
      await chat.create("chat");
      announce(words.chat.gone);
      byId("chat-title").textContent = words.chat.gone;
    }
    sidebar.update();
  }

  /** Takes over the parameters of a request, of a link or of another client. */
  function restoreParameters(given, isChat) {
    if (typeof given.model === "string") chooseModel(given.model);
    parameterPanel.restore(given, isChat);
  }

  /** Shows what another client has asked, as it is, as a conversation. */
  async function openRequest(record) {
    const { prompts: [asked], parameters } = record.request;
    restoreParameters(parameters, asked.messages !== undefined);
    if (asked.messages !== undefined) {
      const { system, nodes } = conversationOf(record);
      await chat.adopt(system, nodes);
      return;
    }
    const content = typeof asked.prompt === "string" ? asked.prompt : (record.prompts[0]?.text ?? "");
    await chat.adopt("", [{ id: makeId(), parent: null, role: "user", content, created: Date.now(), attachments: [] }], "completion");
  }

  /** The names of the models that may answer in a conversation: its own, and the one that was chosen last. */
  function modelsFor(conversation) {
    const own = conversation === null ? null : modelNameOf(conversation);
    return own === null ? [controls.settings.model] : [own, controls.settings.model];
  }

  /** While a conversation is shown, its model is the one that the page shows. */
  function useModelOf(conversation) {
    if (document.body.dataset.mode === "chat" && conversation !== null) useModel(modelsFor(conversation));
  }

  /** Whose answers, and whose engine, are shown from now on: those of the first of these models that is there. */
  function useModel(names) {
    const before = server.model?.id;
    server.choose(names);
    if (server.model?.id !== before) panels.engine?.reopen();
  }

  /** The reader has chosen a model: it answers from now on, in the conversation that is shown and in new ones. */
  function chooseModel(name) {
    controls.change({ model: name });
    if (document.body.dataset.mode === "chat") chat.chooseModel(name);
    else useModel([name]);
  }

  function showState() {
    showServer(server);
    panels.tokens?.offerModels(server.models);
    parameterPanel.model = server.model;
    showDepartures();
    chat.showSight();
    if (server.name === "locked" && (byId("key-setting").hidden || server.isRefused)) askForKey();
    byId("api-key-error").textContent = server.isRefused ? words.settings.keyRefused : "";
    showHolds();
  }

  /** Opens the settings at the field of the key, which is shown from now on. */
  function askForKey() {
    byId("key-setting").hidden = false;
    layout.open("settings");
    byId("api-key").focus();
  }

  byId("api-key").value = own.key.value;
  byId("key-setting").hidden = own.key.value === "";
  byId("api-key").addEventListener("change", () => {
    own.changeKey(byId("api-key").value);
    server.forget();
    server.check();
  });
  for (const id of ["tools", "schema", "keys"]) {
    const dialog = byId(`${id}-dialog`);
    byId(`${id}-open`).addEventListener("click", () => dialog.showModal());
    dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  }
  byId("models-open").addEventListener("click", openPicker);
  byId("theme").value = theme.value;
  byId("theme").addEventListener("change", () => (theme.value = byId("theme").value));
  byId("export-format").append(...Object.entries(FORMATS).map(([value, name]) => new Option(name, value)));
  byId("language").append(new Option(words.settings.languageSystem, ""), ...Object.entries(LANGUAGES).map(([value, name]) => new Option(name, value)));
  byId("language").value = chosenLanguage();
  byId("language").addEventListener("change", () => chooseLanguage(byId("language").value));

  const { palette } = words;
  const isChat = () => document.body.dataset.mode === "chat";
  const isWithTools = () => chat.conversation?.kind !== "completion";
  const stop = () => panels[document.body.dataset.mode]?.stop?.();
  const keys = setUpKeys({
    stop: () => {
      if (document.querySelector("dialog[open]") === null && !layout.closeSheets()) stop();
    },
    create: () => router.go(NEW.chat),
    search: () => {
      layout.showSidebar(true);
      sidebar.focusSearch();
    },
    sidebar: () => layout.showSidebar(!layout.hasSidebar),
    inspect: () => layout.open(inspector.isOpen ? null : "inspector"),
    help: () => byId("keys-dialog").showModal(),
  });
  byId("keys-list").append(...keys);
  new Palette().add(
    { name: palette.newChat, run: () => router.go(NEW.chat) },
    { name: palette.newCompletion, run: () => router.go(NEW.completion) },
    { name: palette.find, run: () => (layout.showSidebar(true), sidebar.focusSearch()) },
    { name: words.sidebar.bin, run: () => sidebar.showBin() },
    { name: palette.toChat, run: () => router.go(byId("tab-chat").getAttribute("href")) },
    { name: palette.toCompare, run: () => router.go("#/compare") },
    { name: palette.toEngine, run: () => router.go("#/engine") },
    { name: palette.stop, run: stop },
    { name: palette.regenerate, run: () => chat.regenerateLast(), isOffered: isChat },
    { name: palette.editLast, run: () => chat.editLast(), isOffered: isChat },
    { name: palette.inspect, run: () => layout.open("inspector"), isOffered: isChat },
    { name: palette.toEnd, run: () => chat.scrollToEnd(), isOffered: isChat },
    { name: palette.attach, run: () => byId("chat-attach").click(), isOffered: isChat },
    { name: palette.settings, run: () => layout.open("settings") },
    { name: palette.system, run: () => (layout.open("settings"), chat.editSystem()) },
    ...[...document.querySelectorAll("input[name=transport]")].map((radio) => ({
      name: palette.transport(radio.parentElement.textContent.trim()), run: () => radio.click(),
    })),
    ...["system", "light", "dark"].map((value) => ({
      name: palette.theme(byId("theme").querySelector(`[value=${value}]`).textContent),
      run: () => (byId("theme").value = theme.value = value),
    })),
    ...Object.entries(LANGUAGES).map(([value, name]) => ({ name: palette.language(name), run: () => chooseLanguage(value) })),
    { name: palette.toModels, run: () => router.go("#/models") },
    { name: palette.chooseModel, run: openPicker },
    { name: palette.tools, run: () => byId("chat-tools").click(), isOffered: isWithTools },
    { name: palette.toolDefinitions, run: () => byId("tools-dialog").showModal(), isOffered: isWithTools },
    { name: palette.schema, run: () => byId("schema-dialog").showModal() },
    { name: palette.parameters, run: () => {
      layout.open("settings");
      byId("more-parameters").open = true;
      byId("more-parameters").querySelector("summary").focus();
    } },
    { name: palette.keys, run: () => byId("keys-dialog").showModal() },
    { name: palette.docs, run: () => location.assign("docs") },
  );
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) server.check();
  });

  showState();
  server.start();
  chat.answers.resumeAll().then(() => router.follow());
}

const language = languageOf(chosenLanguage());
loadWords(language).then(() => start(language));
