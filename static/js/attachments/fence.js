/** A file's text with its name, in a fence that the text cannot close. @param {{name: string, text: string}} file */
export function fenced({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${name}\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}\n\n`;
}
