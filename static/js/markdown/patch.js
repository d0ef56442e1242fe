/** Makes the document follow a list of parsed parts, and touches only what has changed. Text enters it as text. */

import { buildCode, updateCode } from "./code_view.js";
import { buildFormula } from "./formula_view.js";

/**
 * @param {Node} parent
 * @param {number} offset children before it are left alone
 * @param {(string|object)[]} old what the children behind the offset were made of
 * @param {(string|object)[]} parts what they shall be
 */
export function patchChildren(parent, offset, old, parts) {
  for (let index = 0; index < parts.length; index += 1) {
    const child = parent.childNodes[offset + index];
    if (index >= old.length) parent.append(build(parts[index]));
    else if (!patch(child, old[index], parts[index])) child.replaceWith(build(parts[index]));
  }
  for (let index = parts.length; index < old.length; index += 1) parent.childNodes[offset + parts.length].remove();
}

/** Whether the node could be changed into the part. */
function patch(node, old, part) {
  if (typeof part === "string" || typeof old === "string") {
    if (typeof part !== typeof old) return false;
    if (part.startsWith(old)) {
      if (part.length > old.length) node.appendData(part.slice(old.length));
    } else {
      node.data = part;
    }
    return true;
  }
  if (part.tag !== old.tag) return false;
  if (part.formula !== undefined || old.formula !== undefined) return isSameFormula(old, part);
  if (part.language !== undefined || old.language !== undefined) return updateCode(node, old, part);
  patchAttributes(node, old.attributes, part.attributes);
  patchChildren(node, 0, old.children, part.children);
  return true;
}

function isSameFormula(old, part) {
  return part.children[0] === old.children[0] && part.formula?.isDisplay === old.formula?.isDisplay;
}

function patchAttributes(node, old, attributes) {
  for (const name of Object.keys(old)) if (!(name in attributes)) node.removeAttribute(name);
  for (const [name, value] of Object.entries(attributes)) if (old[name] !== value) node.setAttribute(name, value);
}

function build(part) {
  if (typeof part === "string") return document.createTextNode(part);
  if (part.formula !== undefined) return buildFormula(part);
  if (part.language !== undefined) return buildCode(part);
  const element = document.createElement(part.tag);
  for (const [name, value] of Object.entries(part.attributes)) element.setAttribute(name, value);
  element.append(...part.children.map(build));
  return element;
}
