/** What has been said: the turns that the model shall see. */
export class Conversation {
  #turns = []; // {question, answer}

  get isEmpty() {
    return this.#turns.length === 0;
  }

  /** The messages that ask `question` after all that was said before. */
  ask(system, question) {
    const messages = system.trim() === "" ? [] : [{ role: "system", content: system }];
    for (const turn of this.#turns) {
      messages.push({ role: "user", content: turn.question }, { role: "assistant", content: turn.answer });
    }
    messages.push({ role: "user", content: question });
    return messages;
  }

  /** A question with its answer, complete or stopped. An answer without a word is not kept: chat templates want one. */
  add(question, answer) {
    if (answer !== "") this.#turns.push({ question, answer });
  }

  clear() {
    this.#turns = [];
  }
}
