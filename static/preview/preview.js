/**
 * The inner side of a preview: it becomes the HTML that the page sends. Its policy (`server/http/playground/routes.py`)
 * lets no other script run and nothing be fetched; what would ask for a connection in other ways is taken out.
 */

// Hints make browsers connect without any policy being asked, and the others replace the document or hide a part of it.
const LEFT_OUT = "script, link, meta, base, iframe, frame, frameset, object, embed, portal, fencedframe, template, noscript";
const ADDRESSES = ["href", "xlink:href", "src", "srcset", "poster", "background", "action", "formaction", "ping", "data", "srcdoc"];

function becomes(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  for (const element of parsed.querySelectorAll(LEFT_OUT)) element.remove();
  for (const element of parsed.querySelectorAll("*")) {
    for (const { name, value } of [...element.attributes]) {
      const isElsewhere = ADDRESSES.includes(name) && !/^\s*(#|data:(image|font|audio|video)\/)/i.test(value);
      if (isElsewhere || name.startsWith("on")) element.removeAttribute(name);
    }
  }
  document.documentElement.replaceWith(document.adoptNode(parsed.documentElement));
}

addEventListener("message", ({ source, data }) => {
  if (source === parent && typeof data === "string") becomes(data);
});
