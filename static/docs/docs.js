/** Shows the OpenAPI document of this server, and lets the reader try its routes. */

import { ApiKey } from "../js/transport/api_key.js";
import { element } from "./element.js";
import { exampleOf, typeOf } from "./schema.js";

const apiKey = new ApiKey(() => window.sessionStorage);
const keyedFetch = apiKey.over(globalThis.fetch.bind(globalThis));
const byId = (id) => document.getElementById(id);

async function load() {
  byId("problem").hidden = true;
  let answer;
  try {
    answer = await keyedFetch("openapi.json");
  } catch {
    return complain("The server does not answer.");
  }
  byId("key-form").hidden = answer.status !== 401;
  if (answer.status === 401) {
    byId("operations").replaceChildren();
    byId("key").focus();
    return;
  }
  if (!answer.ok) return complain(`The server answers with status ${answer.status}.`);
  show(await answer.json());
}

function complain(sentence) {
  byId("operations").replaceChildren();
  byId("problem").textContent = sentence;
  byId("problem").hidden = false;
}

function show(spec) {
  byId("version").textContent = `version ${spec.info.version}`;
  const groups = spec.tags.map(({ name }) => [name, element("section", {}, [element("h2", {}, [name])])]);
  const groupOf = new Map(groups);
  for (const [path, methods] of Object.entries(spec.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      groupOf.get(operation.tags[0]).append(showOperation(spec, path, method.toUpperCase(), operation));
    }
  }
  byId("operations").replaceChildren(...groupOf.values());
}

function showOperation(spec, path, method, operation) {
  const details = element("details", { id: operation.operationId }, [
    element("summary", {}, [
      element("span", { className: "method" }, [method]),
      element("code", {}, [path]),
      element("span", { className: "soft" }, [operation.summary]),
    ]),
  ]);
  // What is inside is made when it is opened first: most of it never is.
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(showInside(spec, path, method, operation));
  });
  return details;
}

function showInside(spec, path, method, operation) {
  const inside = element("div", { className: "inside" });
  const names = (operation.parameters ?? []).map(({ name, in: place }) => [name, place]);
  for (const [name, place] of names) inside.append(element("p", {}, [element("code", {}, [name]), ` in the ${place}`]));
  const body = operation.requestBody?.content["application/json"].schema;
  if (body !== undefined) inside.append(element("h3", {}, ["Parameters"]), showFields(spec, body));
  for (const [status, { description, content }] of Object.entries(operation.responses)) {
    inside.append(element("h3", {}, [status === "default" ? "Errors" : `Answer ${status}`]));
    if (content === undefined) inside.append(element("p", {}, [description]));
    for (const [kind, { schema, "x-event": event }] of Object.entries(content ?? {})) {
      inside.append(element("p", {}, [element("code", {}, [kind]), event ? ": server-sent events, the data of each is" : ""]));
      if ((event ?? schema)?.$ref !== undefined) inside.append(showFields(spec, event ?? schema));
    }
  }
  if (operation.responses["101"] === undefined) inside.append(makeTrial(spec, path, method, body));
  return inside;
}

function showFields(spec, schema) {
  const target = resolve(spec, schema);
  const required = new Set(target.required ?? []);
  const rows = Object.entries(target.properties ?? {}).map(([name, field]) =>
    element("tr", {}, [
      element("td", {}, [element("code", {}, [name]), required.has(name) ? " (required)" : ""]),
      element("td", {}, [typeOf(spec, field)]),
      element("td", { className: "soft" }, [(field.description ?? "").replaceAll("`", "")]),
    ]),
  );
  return element("div", { className: "scrolled", tabIndex: 0 }, [element("table", {}, rows)]);
}

function makeTrial(spec, path, method, body) {
  const address = element("input", { type: "text", value: path, spellcheck: false, ariaLabel: "Address" });
  const text = element("textarea", { rows: 8, spellcheck: false, ariaLabel: "Body" });
  const send = element("button", { type: "submit", className: "primary" }, ["Send"]);
  const status = element("span", { className: "soft", role: "status" });
  const answer = element("pre", { hidden: true, tabIndex: 0 });
  if (body !== undefined) text.value = JSON.stringify(exampleOf(spec, body), null, 2);
  const form = element("form", {}, [
    element("h3", {}, ["Try it"]),
    address,
    body === undefined ? "" : text,
    element("div", { className: "actions" }, [send, status]),
    answer,
  ]);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    answer.hidden = false;
    answer.textContent = "";
    try {
      await tell(address.value, method, body === undefined ? undefined : text.value, status, answer);
    } catch (error) {
      status.textContent = String(error);
    }
    send.disabled = false;
  });
  return form;
}

/** Sends a request and shows the answer as it arrives. */
async function tell(address, method, body, status, shown) {
  const options = body === undefined ? { method } : { method, body, headers: { "Content-Type": "application/json" } };
  const answer = await keyedFetch(address, options);
  status.textContent = `status ${answer.status}`;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    shown.append(value);
  }
}

function resolve(spec, schema) {
  return schema.$ref === undefined ? schema : spec.components.schemas[schema.$ref.split("/").at(-1)];
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  apiKey.value = byId("key").value;
  load();
});
load();
