/** The line at the top: the model, and the state of the server. */

import { announce, byId } from "../page/dom.js";
import { words } from "../words/words.js";

const STAGE = /\(([^()]+)\)$/; // at the end of the server's sentence on its loading
const HELD = ["paused", "asleep"]; // the model takes requests, but computes none yet

/** @param {import("../transport/server_state.js").ServerState} server */
export function showServer(server) {
  const { name, detail, model, isRefused } = server;
  const isHeld = name === "ready" && HELD.includes(model?.state);
  const said = isHeld ? words.header.modelStates[model.state]
    : name === "unwell" && detail !== "" ? detail : words.state[isRefused ? "refused" : name];
  if (byId("server").dataset.state !== name) announce(said);
  byId("server").dataset.state = name;
  byId("server").classList.toggle("held", isHeld);
  byId("server-state").textContent = said;
  byId("server-stage").textContent = name === "loading" ? (STAGE.exec(detail)?.[1] ?? "") : "";
  offerModels(server, name === "loading" ? null : model);
}

/** Offers the server's models where it has several, each with its state and size. */
function offerModels({ entries }, model) {
  const hasSeveral = entries.length > 1;
  byId("server-model").textContent = hasSeveral ? "" : (model?.id ?? "");
  byId("server-model").title = model === null ? "" : [describe(model), words.header.moreModels].filter(Boolean).join(" · ");
  byId("model-setting").hidden = !hasSeveral;
  const select = byId("model");
  const key = JSON.stringify(entries.map((entry) => [entry.id, describe(entry)]));
  if (select.dataset.key !== key) {
    select.dataset.key = key;
    select.replaceChildren(...entries.map((entry) => new Option([entry.id, describe(entry)].filter(Boolean).join(" – "), entry.id)));
  }
  select.value = model?.id ?? "";
}

/** Whether a model is in memory, and how much of it its weights take. */
function describe(entry) {
  const state = words.header.modelStates[entry.state] ?? "";
  return [state, memoryOf(entry)].filter((part) => part !== "").join(", ");
}

/** The memory of the weights, from their number and kind; empty where they are not known. */
function memoryOf({ num_parameters: count, quantization, dtype }) {
  if (!Number.isFinite(count)) return "";
  const bits = Number(/\d+/.exec(quantization ?? "")?.[0] ?? (dtype === "float32" ? 32 : 16));
  const bytes = (count * bits) / 8;
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.round(bytes / 1e6)} MB`;
}
