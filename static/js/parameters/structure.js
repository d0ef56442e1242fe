/** Tools and JSON schemas, as they are written into the page: read, checked, and made from rows of a form. */

import { words } from "../words/words.js";

const NAME = /^[A-Za-z0-9_-]{1,64}$/;
export const TYPES = ["string", "number", "integer", "boolean", "array", "object"];

/** @returns {{value: object[]|null, error: string|null}} the tools of a request; null for none */
export function readTools(text) {
  if (text.trim() === "") return { value: null, error: null };
  try {
    const parsed = parse(text);
    const tools = (Array.isArray(parsed) ? parsed : [parsed]).map((tool, index) => readTool(tool, index + 1));
    const names = tools.map((tool) => tool.function.name);
    const twice = names.find((name, index) => names.indexOf(name) !== index);
    if (twice !== undefined) throw new Error(words.structure.twice(twice));
    return { value: tools.length > 0 ? tools : null, error: null };
  } catch (error) {
    return { value: null, error: error.message };
  }
}

/** @returns {{value: object|null, error: string|null}} a JSON schema; null for none */
export function readSchema(text) {
  if (text.trim() === "") return { value: null, error: null };
  try {
    const schema = parse(text);
    checkSchema(schema, words.structure.theSchema);
    return { value: schema, error: null };
  } catch (error) {
    return { value: null, error: error.message };
  }
}

/** An object's schema from rows `{name, type, description, isRequired}`; rows without a name are left out. */
export function schemaOfRows(rows) {
  const named = rows.filter(({ name }) => name.trim() !== "");
  const properties = {};
  for (const { name, type, description } of named) {
    properties[name.trim()] = description.trim() === "" ? { type } : { type, description: description.trim() };
    if (type === "array") properties[name.trim()].items = { type: "string" };
  }
  const required = named.filter(({ isRequired }) => isRequired).map(({ name }) => name.trim());
  return { type: "object", properties, required, additionalProperties: false };
}

/** The text of the tools with one more function. */
export function addTool(text, { name, description, rows }) {
  const { value, error } = readTools(text);
  if (error !== null) return { text, error };
  const tool = { type: "function", function: { name: name.trim(), description: description.trim(), parameters: schemaOfRows(rows) } };
  const longer = JSON.stringify([...(value ?? []), tool], null, 2);
  const { error: reason } = readTools(longer);
  return reason === null ? { text: longer, error: null } : { text, error: reason };
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(words.structure.notJson(error.message));
  }
}

/** Takes OpenAI's shape, and the function alone. */
function readTool(raw, number) {
  const tool = isObject(raw) && isObject(raw.function) ? raw.function : raw;
  if (!isObject(tool)) throw new Error(words.structure.toolNotObject(number));
  if (typeof tool.name !== "string" || !NAME.test(tool.name)) {
    throw new Error(words.structure.toolName(number));
  }
  if (tool.parameters !== undefined) checkSchema(tool.parameters, words.structure.parametersOf(tool.name));
  return { type: "function", function: tool };
}

function checkSchema(schema, what) {
  if (!isObject(schema)) throw new Error(words.structure.notObject(what));
  if (schema.properties !== undefined && !isObject(schema.properties)) throw new Error(words.structure.propertiesNotObject(what));
  if (schema.required !== undefined && !Array.isArray(schema.required)) throw new Error(words.structure.requiredNotList(what));
  const types = [schema.type ?? []].flat();
  const strange = types.find((type) => ![...TYPES, "null"].includes(type));
  if (strange !== undefined) throw new Error(words.structure.noType(what, JSON.stringify(strange)));
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    if (typeof property !== "boolean") checkSchema(property, `${what}, ${name}`);
  }
  if (isObject(schema.items)) checkSchema(schema.items, `${what}, items`);
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
