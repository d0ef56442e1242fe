/** Where answers part. */

/**
 * The first place at which not all have the same token, or null where the shorter is the beginning of the longer.
 *
 * Tokens of several models have numbers of their own, so their texts are compared.
 */
export function firstDifference(lists, models = []) {
  const isOneModel = new Set(models).size < 2;
  const differ = (a, b) => (isOneModel && a.id !== null && b.id !== null ? a.id !== b.id : a.text !== b.text);
  if (lists.length < 2) return null;
  const length = Math.min(...lists.map((tokens) => tokens.length));
  for (let at = 0; at < length; at += 1) {
    const [first, ...others] = lists.map((tokens) => tokens[at]);
    if (others.some((token) => differ(first, token))) return at;
  }
  return null;
}
