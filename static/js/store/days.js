/** Conversations by the day on which they were last written to. */

import { words } from "../words/words.js";

const DAY = 86_400_000; // milliseconds

/**
 * @param {{updated: number}[]} summaries the latest first
 * @returns {{title: string, summaries: object[]}[]} today, yesterday, the last 7 and 30 days, and then month by month
 */
export function byDay(summaries, now = new Date()) {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const groups = [];
  for (const summary of summaries) {
    const title = titleOf(summary.updated, midnight);
    if (groups.at(-1)?.title !== title) groups.push({ title, summaries: [] });
    groups.at(-1).summaries.push(summary);
  }
  return groups;
}

/** A moment as it is read: its time where it is today's, else its day. */
export function momentOf(time, now = new Date()) {
  const date = new Date(time);
  return date.toDateString() === now.toDateString()
    ? date.toLocaleTimeString(words.common.locale, { timeStyle: "short" })
    : date.toLocaleDateString(words.common.locale, { day: "numeric", month: "short", year: "numeric" });
}

function titleOf(updated, midnight) {
  if (updated >= midnight) return words.sidebar.today;
  if (updated >= midnight - DAY) return words.sidebar.yesterday;
  if (updated >= midnight - 7 * DAY) return words.sidebar.week;
  if (updated >= midnight - 30 * DAY) return words.sidebar.month;
  return new Date(updated).toLocaleDateString(words.common.locale, { month: "long", year: "numeric" });
}
