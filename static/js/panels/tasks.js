/** What conversations ask of the server: the bodies of requests, and how many tokens they have. */

import { messagesOf, noteOf, pictureOf, picturesOf, sentOf, textOf } from "../store/messages.js";
import { seesPictures } from "../transport/server_state.js";

export class Tasks {
  #deps;

  /**
   * @param {{parameters: (model: object|null) => object, sampling: (model: object|null) => object,
   *   system: (conversation: object) => string, modelOf: (conversation: object) => object|null, fetch: typeof fetch}} deps
   *   `parameters` are those of chats, `sampling` those of completions
   */
  constructor(deps) {
    this.#deps = deps;
  }

  /** The task of an answer to the path that ends with `parent`. */
  of(conversation, parent) {
    const model = this.#deps.modelOf(conversation);
    const parameters = conversation.kind === "completion" ? this.#deps.sampling(model) : this.#deps.parameters(model);
    return { ...this.#promptOf(conversation, parent.id, model), ...parameters };
  }

  /**
   * The task of an answer that was written, with what stands above it now; null for one that was not asked for like this.
   *
   * @param {object} answer its node
   */
  asked(conversation, { parent, parameters, usage }) {
    if (parent === null || parameters.num_prompt_output_tokens !== undefined) return null;
    const model = this.#deps.modelOf(conversation);
    const task = { ...this.#promptOf(conversation, parent, model), ...parameters };
    // A completion without a length of its own was given what its prompt left of the context.
    const left = (model?.max_model_len ?? NaN) - (usage?.prompt_tokens ?? NaN);
    return "messages" in task || task.max_tokens !== undefined || !(left > 0) ? task : { ...task, max_tokens: left };
  }

  /** What leads to a place of the conversation, as the server gets it. */
  #promptOf(conversation, parent, model) {
    const path = conversation.tree.pathTo(parent);
    // A space at the end would part the model from the word it is about to write.
    if (conversation.kind === "completion") return { prompt: textOf(path).replace(/ +$/, "") };
    const asPart = seesPictures(model) ? pictureOf : noteOf;
    return { messages: messagesOf(this.#deps.system(conversation), sentOf(path, conversation.sentFrom), asPart) };
  }

  /** The task that goes on where an answer ends. */
  continuing(conversation, answer) {
    const { tools: _, tool_choice: __, ...task } = this.of(conversation, answer);
    return { ...task, continue_final_message: true };
  }

  /**
   * How many tokens the next request of a chat would have, by the server's own tokenizer, with what is being written.
   *
   * @returns {Promise<{used: number, limit: number}|null>} null where it is not known, or the model is not in memory
   */
  async count(conversation, content, attachments) {
    const model = this.#deps.modelOf(conversation);
    if (conversation.kind !== "chat" || !model?.max_model_len) return null;
    if (!["ready", undefined].includes(model.state)) return null; // to count would wake a model, and put another one to sleep
    const path = sentOf(conversation.tree.path(), conversation.sentFrom);
    if (content !== "" || attachments.length > 0) path.push({ role: "user", content, attachments });
    // Pictures are not sent only to be counted: the server says what one costs.
    const messages = messagesOf(this.#deps.system(conversation), path, noteOf);
    const numOfPictures = picturesOf(path).length * (model.image_tokens ?? 0);
    if (messages.length === 0) return { used: 0, limit: model.max_model_len };
    const { tools } = this.#deps.parameters(model);
    try {
      const response = await this.#deps.fetch("/tokenize", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ model: model.id, messages, ...(tools ? { tools } : {}) }),
      });
      return response.ok ? { used: (await response.json()).count + numOfPictures, limit: model.max_model_len } : null;
    } catch {
      return null; // the gauge stays as it is
    }
  }
}
