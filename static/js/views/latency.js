/** When tokens came. Times in milliseconds; null where nobody has measured them, such as after a reload. */

/** The gaps between the arrivals of tokens; tokens that came together share one gap and have none between them. */
export function gapsOf(tokens) {
  const gaps = [];
  for (let at = 1; at < tokens.length; at += 1) {
    if (tokens[at - 1].at !== null && tokens[at].at > tokens[at - 1].at) gaps.push({ at: tokens[at].at, gap: tokens[at].at - tokens[at - 1].at });
  }
  return gaps;
}

/** The value below which a share of the values lies: the nearest rank. */
export function percentile(values, share) {
  if (values.length === 0) return null;
  const sorted = Float64Array.from(values).sort(); // by value, and many times as fast as an array is
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(share * sorted.length) - 1))];
}

const RECENT = 1000; // milliseconds of the rate "now"

/** @param {{at: number}[]} tokens of one answer, those that were given aside */
export function summary(tokens) {
  if (tokens.length === 0) return { first: null, p50: null, p99: null, now: null, overall: null, numTokens: 0 };
  const gaps = gapsOf(tokens).map(({ gap }) => gap);
  const [first, last] = [tokens[0].at, tokens.at(-1).at];
  const known = { first, p50: percentile(gaps, 0.5), p99: percentile(gaps, 0.99), numTokens: tokens.length };
  if (first === null || last === null) return { ...known, now: null, overall: null };
  const recent = tokens.filter(({ at }) => at > last - RECENT);
  const span = Math.min(RECENT, last - first);
  return {
    ...known,
    now: span > 0 ? ((recent.length - (last - first < RECENT ? 1 : 0)) * 1000) / span : null,
    overall: last > first ? ((tokens.length - 1) * 1000) / (last - first) : null,
  };
}

export function describeLatency({ first, p50, p99, now, overall }) {
  const ms = (value) => (value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`);
  const rate = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} tokens/s`;
  const parts = [];
  if (first !== null) parts.push(`first token ${ms(first)}`);
  if (p50 !== null) parts.push(`gaps p50 ${ms(p50)}`, `p99 ${ms(p99)}`);
  if (now !== null) parts.push(`${rate(now)} at the end`);
  if (overall !== null) parts.push(`${rate(overall)} overall`);
  return parts;
}

/**
 * The gaps as columns of pixels: of each column the longest gap that ends in it.
 *
 * @param {number} span milliseconds that the whole width stands for
 */
export function columnsOf(gaps, width, span) {
  const columns = new Float64Array(width);
  for (const { at, gap } of gaps) {
    const column = Math.min(width - 1, Math.floor((at / span) * width));
    if (gap > columns[column]) columns[column] = gap;
  }
  return columns;
}
