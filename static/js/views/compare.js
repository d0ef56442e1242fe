/** Where answers part. */

/** The first place at which not all have the same token, or null where the shorter is the beginning of the longer. */
export function firstDifference(lists) {
  if (lists.length < 2) return null;
  const length = Math.min(...lists.map((tokens) => tokens.length));
  for (let at = 0; at < length; at += 1) {
    const [first, ...others] = lists.map((tokens) => tokens[at]);
    if (others.some((token) => (first.id === null || token.id === null ? token.text !== first.text : token.id !== first.id))) return at;
  }
  return null;
}
