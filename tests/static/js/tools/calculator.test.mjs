import assert from "node:assert/strict";
import test from "node:test";

import { calculate } from "../../../../static/js/tools/calculator.js";

test("expressions have the values of arithmetic", () => {
  const values = {
    "1 + 2 * 3": "7", "(1 + 2) * 3": "9", "2 ^ 3 ^ 2": "512", "2 ** 10": "1024", "-2^2": "-4", "2^-1": "0.5",
    "10 - 4 - 3": "3", "8 / 4 / 2": "1", "7 % 4": "3", "0.1 + 0.2": "0.3", "1e3 + .5": "1000.5", "- - 3": "3",
    "sqrt(16)": "4", "max(1, 7, 3)": "7", "round(2.5) * PI": "9.42477796076938", "ln(e)": "1", "log(1000)": "3",
    "6 × 7 ÷ 2 − 1": "20", "3*-2": "-6", " 5 ": "5",
  };
  for (const [expression, value] of Object.entries(values)) assert.equal(calculate(expression), value, expression);
});

test("what has no value is a sentence", () => {
  for (const wrong of ["", "1 +", "(1", "1 2", "1/0", "sqrt(-1)", "alert(1)", "constructor", "x", "1 + $", "sqrt(1, 2)", "()", "a".repeat(2000), "(".repeat(500), 5, null]) {
    assert.throws(() => calculate(wrong), (error) => error.constructor === Error && error.message.endsWith("."), String(wrong));
  }
});
