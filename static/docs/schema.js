/** JSON schemas in words, and values that fit them. */

const EXAMPLES = {
  messages: [{ role: "user", content: "Why is the sky blue?" }],
  prompt: "Once upon a time",
  input: "The tide comes in.",
  tokens: [1, 2, 3],
};

const nameOf = (schema) => schema.$ref.split("/").at(-1);

/** The type of a value that fits `schema`, in a few words. */
export function typeOf(spec, schema) {
  if (schema.$ref !== undefined) return nameOf(schema);
  const kinds = schema.anyOf ?? schema.oneOf;
  if (kinds !== undefined) {
    return kinds
      .filter(({ type }) => type !== "null")
      .map((kind) => typeOf(spec, kind))
      .join(" or ");
  }
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum !== undefined) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return schema.items === undefined ? "list" : `list of ${typeOf(spec, schema.items)}`;
  return [schema.type ?? "anything", limitsOf(schema)].filter((part) => part !== "").join(", ");
}

function limitsOf({ minimum, maximum, exclusiveMinimum }) {
  if (exclusiveMinimum !== undefined) return `above ${exclusiveMinimum}${maximum === undefined ? "" : `, at most ${maximum}`}`;
  if (minimum !== undefined) return maximum === undefined ? `at least ${minimum}` : `from ${minimum} to ${maximum}`;
  return maximum === undefined ? "" : `at most ${maximum}`;
}

/** A small body for the route whose bodies have this schema. */
export function exampleOf(spec, schema) {
  const { properties = {}, required = [] } = schema.$ref === undefined ? schema : spec.components.schemas[nameOf(schema)];
  const wanted = required.length > 0 || !("prompt" in properties) ? required : ["prompt"];
  const example = Object.fromEntries(wanted.map((name) => [name, EXAMPLES[name] ?? ""]));
  if ("max_tokens" in properties) example.max_tokens = 40;
  if ("stream" in properties) example.stream = true;
  return example;
}
