/** The whole setup in the fragment of the address, which browsers never send to a server. */

const PREFIX = "#setup=";
const MOST_CHARACTERS = 100_000;

/** @param {object} setup plain data */
export function toFragment(setup) {
  const bytes = new TextEncoder().encode(JSON.stringify(setup));
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return PREFIX + btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** The setup of a fragment, or null where it holds none, or none that can be read. */
export function fromFragment(fragment) {
  if (!fragment.startsWith(PREFIX) || fragment.length > MOST_CHARACTERS) return null;
  try {
    const binary = atob(fragment.slice(PREFIX.length).replaceAll("-", "+").replaceAll("_", "/"));
    const setup = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(binary, (c) => c.charCodeAt(0))));
    return setup !== null && typeof setup === "object" && !Array.isArray(setup) ? setup : null;
  } catch {
    return null;
  }
}
