/** The limits of numbers, as sentences at their fields. */

const words = {
  notNumber: (name) => `${name} is not a number.`,
  notWhole: (name, value) => `${name} is ${value}; it must be a whole number.`,
  outside: (name, value, range) => `${name} is ${value}; it must be ${range}.`,
  between: (low, high) => `from ${low} to ${high}`,
  aboveUpTo: (low, high) => `above ${low}, at most ${high}`,
  atLeast: (low) => `at least ${low}`,
  above: (low) => `above ${low}`,
  atMost: (high) => `at most ${high}`,
};
const MANY = 2 ** 31 - 1; // a limit from here on is none that a reader cares for

/** A number with commas between its thousands, and a real minus. */
export function shownNumber(value) {
  const text = Math.abs(value) < 10_000 || !Number.isInteger(value) ? String(value) : String(value).replace(/\B(?=(\d{3})+$)/g, ",");
  return text.replace("-", "−");
}

/**
 * What is wrong with a number as it was typed, or null.
 *
 * @param {string} name in front of the sentence @param {string} text
 * @param {{minimum?: number, above?: number, maximum?: number, isWhole?: boolean}} limits
 */
export function limitError(name, text, limits) {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value)) return words.notNumber(name);
  const { minimum, above, maximum, isWhole = false } = limits;
  if (isWhole && !Number.isInteger(value)) return words.notWhole(name, shownNumber(value));
  const isWithin = !(value < minimum) && !(value <= above) && !(value > maximum);
  return isWithin ? null : words.outside(name, shownNumber(value), describeRange(limits));
}

/** The limits in words; an empty text where there are none. */
export function describeRange({ minimum, above, maximum }) {
  const high = maximum === undefined || maximum >= MANY ? null : shownNumber(maximum);
  if (above !== undefined) return high === null ? words.above(shownNumber(above)) : words.aboveUpTo(shownNumber(above), high);
  if (minimum !== undefined && minimum > -MANY) {
    return high === null ? words.atLeast(shownNumber(minimum)) : words.between(shownNumber(minimum), high);
  }
  return high === null ? "" : words.atMost(high);
}
