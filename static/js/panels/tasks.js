/** What conversations ask of the server: the bodies of requests, and how many tokens they have. */

import { messagesOf, noteOf, pictureOf, picturesOf, sentOf, textOf } from "../store/messages.js";
import { seesPictures } from "../transport/server_state.js";

export class Tasks {
  #deps;

  /**
   * @param {{parameters: () => object, sampling: () => object, system: (conversation: object) => string, model: () => object|null,
   *   fetch: typeof fetch}} deps `parameters` are those of chats, `sampling` those of completions
   */
  constructor(deps) {
    this.#deps = deps;
  }

  /** The task of an answer to the path that ends with `parent`. */
  of(conversation, parent) {
    const path = conversation.tree.pathTo(parent.id);
    // A space at the end would part the model from the word it is about to write.
    if (conversation.kind === "completion") return { prompt: textOf(path).replace(/ +$/, ""), ...this.#deps.sampling() };
    const asPart = seesPictures(this.#deps.model()) ? pictureOf : noteOf;
    return { messages: messagesOf(this.#deps.system(conversation), sentOf(path, conversation.sentFrom), asPart), ...this.#deps.parameters() };
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
    const model = this.#deps.model();
    if (conversation.kind !== "chat" || !model?.max_model_len) return null;
    if (!["ready", undefined].includes(model.state)) return null; // to count would wake a model, and put another one to sleep
    const path = sentOf(conversation.tree.path(), conversation.sentFrom);
    if (content !== "" || attachments.length > 0) path.push({ role: "user", content, attachments });
    // Pictures are not sent only to be counted: the server says what one costs.
    const messages = messagesOf(this.#deps.system(conversation), path, noteOf);
    const numOfPictures = picturesOf(path).length * (model.image_tokens ?? 0);
    if (messages.length === 0) return { used: 0, limit: model.max_model_len };
    const { tools } = this.#deps.parameters();
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
