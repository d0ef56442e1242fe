/** The limits of numbers, as sentences at their fields. */

import { words } from "../words/words.js";

const MANY = 2 ** 31 - 1; // a limit from here on is none that a reader cares for

/** A number with separators between its thousands, and a real minus. */
export function shownNumber(value) {
  const text = Math.abs(value) < 10_000 || !Number.isInteger(value) ? String(value) : String(value).replace(/\B(?=(\d{3})+$)/g, words.common.thousands);
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
  if (text.trim() === "" || !Number.isFinite(value)) return words.limits.notNumber(name);
  const { minimum, above, maximum, isWhole = false } = limits;
  if (isWhole && !Number.isInteger(value)) return words.limits.notWhole(name, shownNumber(value));
  const isWithin = !(value < minimum) && !(value <= above) && !(value > maximum);
  return isWithin ? null : words.limits.outside(name, shownNumber(value), describeRange(limits));
}

/** The limits in words; an empty text where there are none. */
export function describeRange({ minimum, above, maximum }) {
  const high = maximum === undefined || maximum >= MANY ? null : shownNumber(maximum);
  if (above !== undefined) return high === null ? words.limits.above(shownNumber(above)) : words.limits.aboveUpTo(shownNumber(above), high);
  if (minimum !== undefined && minimum > -MANY) {
    return high === null ? words.limits.atLeast(shownNumber(minimum)) : words.limits.between(shownNumber(minimum), high);
  }
  return high === null ? "" : words.limits.atMost(high);
}
