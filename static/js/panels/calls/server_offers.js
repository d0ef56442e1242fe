/**
 * What an MCP server has beside tools: prompts, which are written into the message, and resources, which are attached to
 * it. A part of the page that is loaded when somebody looks for them.
 */

import { make } from "../../page/dom.js";
import { fileOf, filesOf, filledIn, namesIn, textOf } from "../../tools/prompt_parts.js";
import { words } from "../../words/words.js";

/**
 * Shows the prompts and resources of a server in an element.
 *
 * @param {HTMLElement} element
 * @param {import("../../tools/mcp_client.js").McpClient} source
 * @param {{insert: (messages: {role: string, text: string}[], files: File[]) => void, attach: (files: File[]) => void}} deps
 */
export async function showOffers(element, source, { insert, attach }) {
  const line = make("p", "note", words.tools.asking);
  line.setAttribute("role", "status");
  element.replaceChildren(line);
  const attempt = async (run) => {
    line.textContent = "";
    try {
      await run();
    } catch (error) {
      line.textContent = error.message;
    }
  };
  await attempt(async () => {
    const { prompts, resources, templates } = await source.listOffers();
    const usePrompt = async ({ name }, values) => {
      const messages = await source.getPrompt(name, values);
      insert(messages.map(({ role, content }) => ({ role, text: textOf(content) })), messages.flatMap(({ content }) => filesOf(content)));
    };
    const read = async (uri, name) => attach((await source.readResource(uri)).map((content) => fileOf(content, name)));
    element.prepend(
      ...list(words.tools.prompts, prompts.map((prompt) => offer(prompt, argumentsOf(prompt), words.tools.insert, (values) => attempt(() => usePrompt(prompt, values))))),
      ...list(words.tools.resources, [
        ...resources.map((resource) => offer(resource, [], words.composer.attach, () => attempt(() => read(resource.uri, resource.name)))),
        ...templates.map((template) => offer(template, namesIn(template.uriTemplate).map((name) => ({ name, required: true })), words.composer.attach,
          (values) => attempt(() => read(filledIn(template.uriTemplate, values))))),
      ]),
    );
    if (prompts.length + resources.length + templates.length === 0) line.textContent = words.tools.offersNothing;
  });
}

function argumentsOf(prompt) {
  return (Array.isArray(prompt.arguments) ? prompt.arguments : []).filter((argument) => typeof argument?.name === "string");
}

function list(title, items) {
  if (items.length === 0) return [];
  const group = make("ul", "plain offers");
  group.setAttribute("aria-label", title);
  group.append(...items);
  return [make("h3", "", title), group];
}

/** A prompt or a resource with its button, and a field for each of its arguments. */
function offer({ name, title, description, uri, uriTemplate }, args, action, use) {
  const item = make("li");
  const form = make("form");
  const label = String(title ?? name ?? uri ?? uriTemplate);
  const button = make("button", "small", action);
  button.type = "submit";
  button.setAttribute("aria-label", words.models.forModel(action, label));
  const head = make("p");
  head.append(make("strong", "", label), " ", make("span", "note", String(description ?? uri ?? uriTemplate ?? "")));
  const fields = args.map((argument) => {
    const field = make("input");
    Object.assign(field, { name: argument.name, required: argument.required === true, autocomplete: "off", title: String(argument.description ?? "") });
    const line = make("label", "note", argument.name);
    line.append(field);
    return line;
  });
  form.append(head, ...fields, button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const values = [...new FormData(form)].filter(([, value]) => value !== "");
    use(Object.fromEntries(values));
  });
  item.append(form);
  return item;
}
