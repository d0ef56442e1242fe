/** The line at the top: the model, and the state of the server. */

import { announce, byId } from "../page/dom.js";
import { memoryOf } from "../transport/server_state.js";
import { words } from "../words/words.js";

const STAGE = /\(([^()]+)\)$/; // at the end of the server's sentence on its loading
const HELD = ["paused", "asleep", "unloaded", "loading", "failed"]; // the model takes requests, but computes none yet

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
  const stage = name === "loading" ? STAGE.exec(detail)?.[1] : isHeld ? model.loading_stage : undefined;
  byId("server-stage").textContent = stage ?? "";
  byId("server-model").textContent = model?.id ?? "";
  byId("models-open").hidden = name === "loading" || model === null;
  byId("models-open").title = model === null ? "" : describe(model);
}

/** Whether a model is in memory, and how much of it it takes. */
function describe(model) {
  const state = words.header.modelStates[model.state] ?? "";
  return [state, memoryOf(model)].filter((part) => part !== "").join(", ");
}
