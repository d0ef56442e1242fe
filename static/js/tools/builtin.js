/** The tools that the page has without any server: a calculator, and the time. */

import { calculate } from "./calculator.js";

const TEXT = { type: "string" };

/** Looks like a client of an MCP server. */
export class BuiltinTools {
  name = "page";
  #now;

  /** @param {{now?: () => Date}} options the clock, which tests set */
  constructor({ now = () => new Date() } = {}) {
    this.#now = now;
  }

  async listTools() {
    return [
      {
        name: "calculator",
        description: "Calculates the value of an arithmetic expression, for example (3 + 4) * 2 ^ 5 or sqrt(2).",
        inputSchema: { type: "object", properties: { expression: TEXT }, required: ["expression"], additionalProperties: false },
      },
      {
        name: "time",
        description: "Tells the date and the time, in the user's time zone or in another one such as Europe/Paris.",
        inputSchema: { type: "object", properties: { time_zone: TEXT }, additionalProperties: false },
      },
    ];
  }

  /** @returns {Promise<{text: string, isError: boolean}>} */
  async callTool(name, args) {
    try {
      if (name === "calculator") return { text: calculate(args.expression), isError: false };
      if (name === "time") return { text: this.#time(args.time_zone), isError: false };
      return { text: `There is no tool ${name}.`, isError: true };
    } catch (error) {
      return { text: error.message, isError: true };
    }
  }

  async close() {}

  #time(zone) {
    const timeZone = typeof zone === "string" && zone !== "" ? zone : undefined;
    try {
      return new Intl.DateTimeFormat("en-GB", { dateStyle: "full", timeStyle: "long", timeZone }).format(this.#now());
    } catch {
      throw new Error(`There is no time zone ${zone}.`);
    }
  }
}
