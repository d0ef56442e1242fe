/** A calculator for the model: the value of an arithmetic expression, by precedence climbing; nothing is run as code. */

const FUNCTIONS = {
  abs: Math.abs, acos: Math.acos, asin: Math.asin, atan: Math.atan, cbrt: Math.cbrt, ceil: Math.ceil, cos: Math.cos,
  exp: Math.exp, floor: Math.floor, ln: Math.log, log: Math.log10, log10: Math.log10, log2: Math.log2, max: Math.max,
  min: Math.min, round: Math.round, sign: Math.sign, sin: Math.sin, sqrt: Math.sqrt, tan: Math.tan, trunc: Math.trunc,
};
const CONSTANTS = { pi: Math.PI, e: Math.E };
const TOKEN = /\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([A-Za-z][A-Za-z0-9]*)|(\*\*|[-+*/%^(),]))/y;
const PRECEDENCE = { "+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 4, "**": 4 };
const NEGATION = 3; // binds tighter than a product and looser than a power: -2^2 is -4
const MOST_CHARACTERS = 1000;
const SIGNIFICANT_DIGITS = 15;

/** @returns {string} the value; throws an Error with a sentence for the model where there is none */
export function calculate(expression) {
  if (typeof expression !== "string") throw new Error("The expression must be a text.");
  if (expression.length > MOST_CHARACTERS) throw new Error(`The expression has more than ${MOST_CHARACTERS} characters.`);
  const tokens = tokenize(expression.replaceAll("×", "*").replaceAll("÷", "/").replaceAll("−", "-"));
  const parser = new Parser(tokens);
  const value = parser.expression(0);
  parser.end();
  if (!Number.isFinite(value)) throw new Error("The value is not a finite number.");
  return String(Number(value.toPrecision(SIGNIFICANT_DIGITS)));
}

function tokenize(text) {
  const tokens = [];
  const end = text.trimEnd().length;
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < end) {
    const at = TOKEN.lastIndex;
    const match = TOKEN.exec(text);
    if (match === null) throw new Error(`The expression cannot be read at "${text.slice(at, at + 20).trim()}".`);
    const [, number, name, symbol] = match;
    tokens.push(number !== undefined ? { number: Number(number) } : name !== undefined ? { name } : { symbol });
  }
  return tokens;
}

class Parser {
  #tokens;
  #at = 0;
  #depth = 0;

  constructor(tokens) {
    this.#tokens = tokens;
  }

  expression(least) {
    let left = this.#operand();
    for (;;) {
      const symbol = this.#tokens[this.#at]?.symbol;
      const precedence = PRECEDENCE[symbol];
      if (precedence === undefined || precedence < least) return left;
      this.#at += 1;
      const isPower = symbol === "^" || symbol === "**"; // from the right: 2^3^2 is 2^9
      left = apply(symbol, left, this.expression(isPower ? precedence : precedence + 1));
    }
  }

  end() {
    if (this.#at < this.#tokens.length) throw new Error("The expression goes on behind its end.");
  }

  #operand() {
    const token = this.#tokens[this.#at++];
    if (token === undefined) throw new Error("The expression ends too early.");
    if (token.number !== undefined) return token.number;
    if (token.symbol === "-") return -this.expression(NEGATION);
    if (token.symbol === "+") return this.expression(NEGATION);
    if (token.symbol === "(") return this.#inBrackets()[0];
    if (token.name === undefined) throw new Error(`"${token.symbol}" stands where a number must be.`);
    return this.#named(token.name.toLowerCase());
  }

  #named(name) {
    if (this.#tokens[this.#at]?.symbol !== "(") {
      if (!Object.hasOwn(CONSTANTS, name)) throw new Error(`There is no ${name}.`);
      return CONSTANTS[name];
    }
    if (!Object.hasOwn(FUNCTIONS, name)) throw new Error(`There is no function ${name}.`);
    this.#at += 1;
    return FUNCTIONS[name](...this.#inBrackets(name === "max" || name === "min" ? Infinity : 1));
  }

  #inBrackets(most = 1) {
    if (++this.#depth > 100) throw new Error("The expression is nested too deeply.");
    const values = [this.expression(0)];
    while (this.#tokens[this.#at]?.symbol === "," && values.length < most) {
      this.#at += 1;
      values.push(this.expression(0));
    }
    if (this.#tokens[this.#at++]?.symbol !== ")") throw new Error("A bracket is not closed.");
    this.#depth -= 1;
    return values;
  }
}

function apply(symbol, left, right) {
  switch (symbol) {
    case "+": return left + right;
    case "-": return left - right;
    case "*": return left * right;
    case "/": return left / right;
    case "%": return left % right;
    default: return left ** right;
  }
}
