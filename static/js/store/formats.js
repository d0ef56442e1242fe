/** The forms of files of conversations, see `files.js`. */

export const FORMATS = { eagre: "Eagre", llama: "llama.cpp", openwebui: "Open WebUI", markdown: "Markdown" };

/** How the name of a file of a format ends. @param {keyof FORMATS} format */
export const suffixOf = (format) => (format === "markdown" ? "md" : "json");
