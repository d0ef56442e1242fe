/** What the highlighter knows of languages: words, comments and texts in quotes. Names are those of code fences. */

const words = (text) => new Set(text.split(" "));

const LITERALS = words("true false null none nil undefined nan inf infinity");
const C_COMMENTS = { line: ["//"], block: [["/*", "*/"]] };
const QUOTES = ['"', "'"];

const C_LIKE = "auto break case catch class const continue default delete do else enum extern final finally for goto if import "
  + "inline interface namespace new operator override package private protected public return sizeof static struct super "
  + "switch template this throw throws try typedef typename union using virtual void volatile while";
const TYPES = "bool boolean byte char double float int long short signed string unsigned";
const SCRIPT = "async await break case catch class const continue debugger default delete do else export extends finally for from "
  + "function get if import in instanceof let new of return set static super switch this throw try typeof var void while with yield";

const LANGUAGES = {
  python: { line: ["#"], multiline: [['"""', '"""'], ["'''", "'''"]], quotes: QUOTES, keywords: words(
    "and as assert async await break case class continue def del elif else except finally for from global if import in is lambda "
    + "match nonlocal not or pass raise return self try while with yield") },
  javascript: { ...C_COMMENTS, multiline: [["`", "`"]], quotes: QUOTES, keywords: words(SCRIPT) },
  typescript: { ...C_COMMENTS, multiline: [["`", "`"]], quotes: QUOTES, keywords: words(
    `${SCRIPT} abstract as declare enum implements interface keyof module namespace private protected public readonly type any never `
    + "unknown boolean number string object") },
  c: { ...C_COMMENTS, quotes: QUOTES, directive: /#\s*\w+/y, keywords: words(`${C_LIKE} ${TYPES} constexpr noexcept nullptr register`) },
  java: { ...C_COMMENTS, multiline: [['"""', '"""']], quotes: QUOTES, keywords: words(
    `${C_LIKE} ${TYPES} abstract extends implements instanceof native record sealed strictfp synchronized transient var yield `
    + "async await base decimal foreach get in init internal is lock object out params readonly ref set unchecked where "
    + "as by companion data fun lateinit object open suspend val when def trait with given") },
  go: { ...C_COMMENTS, multiline: [["`", "`"]], quotes: QUOTES, keywords: words(
    `break case chan const continue default defer else fallthrough for func go goto if import interface map package range return `
    + `select struct switch type var ${TYPES} error int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 rune any`) },
  rust: { ...C_COMMENTS, quotes: ['"'], keywords: words(
    "as async await box break const continue crate dyn else enum extern fn for if impl in let loop macro match mod move mut pub ref "
    + "return self Self static struct super trait type unsafe use where while bool char str u8 u16 u32 u64 usize i8 i16 i32 i64 "
    + "isize f32 f64 String Vec Option Result") },
  swift: { ...C_COMMENTS, multiline: [['"""', '"""']], quotes: ['"'], keywords: words(
    "actor as associatedtype async await break case catch class continue default defer deinit do else enum extension fallthrough "
    + "fileprivate for func guard if import in init inout internal is let nil open operator private protocol public repeat return "
    + "self static struct subscript super switch throw throws try typealias var where while") },
  php: { line: ["//", "#"], block: [["/*", "*/"]], quotes: QUOTES, keywords: words(
    `${C_LIKE} abstract and array as echo elseif endif endforeach extends fn foreach function global implements include match `
    + "mixed or print readonly require trait use var yield") },
  shell: { line: ["#"], multiline: [['"', '"']], quotes: ["'"], variable: /\$(?:\{[^}]*\}?|\w+|[#?@*$!-])/y, keywords: words(
    "if then else elif fi for while until do done case esac function in select return exit export local readonly declare set unset "
    + "shift source alias echo cd sudo") },
  sql: { line: ["--"], block: [["/*", "*/"]], quotes: QUOTES, ignoresCase: true, keywords: words(
    "add all alter and any as asc avg between by case cast check column constraint count create cross database default delete desc "
    + "distinct drop else end except exists foreign from full group having if in index inner insert intersect into is join key left "
    + "like limit max min not null offset on or order outer over partition primary references returning right select set sum table "
    + "then union unique update using values view when where with int integer bigint text varchar char boolean date timestamp "
    + "numeric decimal real serial") },
  json: { line: ["//"], quotes: ['"'], hasKeys: true, keywords: new Set() },
  yaml: { line: ["#"], quotes: QUOTES, key: /\s*(?:- )*[\w.\/-]+(?=\s*:(?:\s|$))/y, keywords: words("yes no on off") },
  toml: { line: ["#", ";"], multiline: [['"""', '"""']], quotes: QUOTES, key: /\s*[\w.-]+(?=\s*=)|\s*\[[^\]]*\]+/y, keywords: new Set() },
  markup: { block: [["<!--", "-->"]], quotes: QUOTES, tag: /<[/!?]?[\w:-]+|[/?]?>/y, keywords: new Set() },
  css: { ...C_COMMENTS, quotes: QUOTES, directive: /@[\w-]+/y, key: /\s*--?[\w-]+(?=\s*:)|\s*[\w-]+(?=\s*:\s)/y, keywords: new Set() },
  ruby: { line: ["#"], quotes: QUOTES, keywords: words(
    "alias and begin break case class def defined do else elsif end ensure false for if in module next not or puts redo require "
    + "rescue retry return self super then undef unless until when while yield attr_reader attr_accessor") },
  lua: { line: ["--"], quotes: QUOTES, keywords: words(
    "and break do else elseif end for function goto if in local not or repeat return then until while") },
  haskell: { line: ["--"], block: [["{-", "-}"]], quotes: ['"'], keywords: words(
    "case class data deriving do else if import in infix infixl infixr instance let module newtype of then type where") },
  r: { line: ["#"], quotes: QUOTES, keywords: words("if else for while repeat function return break next in library TRUE FALSE NULL NA") },
  matlab: { line: ["%"], quotes: ['"'], keywords: words(
    "break case catch classdef continue else elseif end for function global if otherwise parfor return switch try while") },
  dockerfile: { line: ["#"], quotes: QUOTES, ignoresCase: true, keywords: words(
    "from run cmd label expose env add copy entrypoint volume user workdir arg stopsignal healthcheck shell as") },
  makefile: { line: ["#"], quotes: QUOTES, variable: /\$(?:\([^)]*\)?|[@<^*?%+])/y, key: /[\w./%$()-]+(?=\s*:(?!=))/y, keywords: words(
    "include ifeq ifneq ifdef ifndef else endif define endef export override") },
  diff: { isDiff: true, keywords: new Set() },
};

const ALIASES = {
  py: "python", python3: "python", pycon: "python", js: "javascript", mjs: "javascript", jsx: "javascript", node: "javascript",
  ts: "typescript", tsx: "typescript", "c++": "c", cpp: "c", cc: "c", h: "c", hpp: "c", cuda: "c", objc: "c", glsl: "c", arduino: "c",
  cs: "java", csharp: "java", "c#": "java", kotlin: "java", kt: "java", scala: "java", dart: "java", groovy: "java",
  golang: "go", rs: "rust", bash: "shell", sh: "shell", zsh: "shell", console: "shell", fish: "shell", powershell: "shell",
  postgresql: "sql", mysql: "sql", sqlite: "sql", plsql: "sql", json5: "json", jsonc: "json", jsonl: "json", yml: "yaml",
  ini: "toml", cfg: "toml", conf: "toml", properties: "toml", html: "markup", xml: "markup", svg: "markup", vue: "markup",
  scss: "css", less: "css", rb: "ruby", hs: "haskell", elixir: "ruby", octave: "matlab", docker: "dockerfile", make: "makefile",
  patch: "diff", perl: "ruby", julia: "ruby",
};

/** The language of a fence, or null where it is not known. @param {string} name */
export function languageOf(name) {
  const known = Object.hasOwn(ALIASES, name) ? ALIASES[name] : name;
  return Object.hasOwn(LANGUAGES, known) ? LANGUAGES[known] : null;
}

/** Whether a word is a value such as `true`. */
export function isLiteral(word) {
  return LITERALS.has(word.toLowerCase());
}
