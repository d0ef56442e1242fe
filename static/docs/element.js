/**
 * A new element.
 *
 * @param {string} name
 * @param {object} properties of the element
 * @param {(Node | string)[]} children strings become text, never markup
 * @returns {HTMLElement}
 */
export function element(name, properties = {}, children = []) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}
