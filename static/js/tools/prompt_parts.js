/** From the parts that an MCP server sends in prompts and resources to texts and files. */

/** The texts of a message's parts. @param {object[]} parts */
export function textOf(parts) {
  return parts.filter(({ type }) => type === "text").map(({ text }) => String(text)).join("\n\n");
}

/** The files of a message's parts: its resources and pictures. @param {object[]} parts @returns {File[]} */
export function filesOf(parts) {
  return parts.flatMap((part) => {
    if (part.type === "resource") return [fileOf(part.resource ?? {})];
    if (part.type === "image" || part.type === "audio") return [fileOf({ uri: part.type, mimeType: part.mimeType, blob: part.data })];
    return [];
  });
}

/** The content of a resource as a file. @param {{uri?: string, mimeType?: string, text?: string, blob?: string}} content */
export function fileOf({ uri = "", mimeType = "", text, blob }, name = nameOf(uri)) {
  const data = text === undefined ? bytesOf(blob ?? "") : String(text);
  return new File([data], name, { type: text === undefined ? mimeType : "text/plain" });
}

/** The names in a template of addresses, such as `{path}`. @returns {string[]} */
export function namesIn(template) {
  return [...template.matchAll(NAMED)].map(([, , name]) => name);
}

/** An address of a template with its names filled in. @param {Object<string, string>} values */
export function filledIn(template, values) {
  return template.replace(NAMED, (_, mark, name) => (mark === "+" ? encodeURI : encodeURIComponent)(values[name] ?? ""));
}

const NAMED = /\{(\+?)(\w+)\*?\}/g; // of RFC 6570 what servers use

function nameOf(uri) {
  return decoded(String(uri)).split(/[/\\]/).findLast((part) => part !== "") ?? "resource";
}

/** Without percent signs, where they stand for a text. */
function decoded(uri) {
  try {
    return decodeURIComponent(uri);
  } catch {
    return uri;
  }
}

function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
