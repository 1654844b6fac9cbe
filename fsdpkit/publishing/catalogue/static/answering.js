// The worker as a promise: ask(asked) is what `fsdpkit submit … --dry-run` would have written.
"use strict";
class Answering {
  #worker;
  #waiting = new Map();
  #next = 0;

  // told: called with what is being loaded, until it is ready.
  constructor(told = () => {}) {
    this.ready = new Promise((resolve, reject) => {
      const place = new URL("static/worker.js", document.baseURI);
      this.#worker = new Worker(place, { type: "module" });
      this.#worker.onerror = (event) => reject(new Error(event.message || "it could not be loaded"));
      this.#worker.onmessage = ({ data }) => {
        if (data.ready) resolve();
        else if (data.stage) told(data.stage);
        else if (data.failed) reject(new Error(data.failed));
        else this.#answered(data);
      };
    });
    this.ready.catch(() => {}); // whoever asks hears of it
  }

  async ask(asked) {
    await this.ready;
    const answered = await new Promise((resolve) => {
      const id = this.#next++;
      this.#waiting.set(id, resolve);
      this.#worker.postMessage({ id, asked: JSON.stringify(asked) });
    });
    return JSON.parse(answered);
  }

  #answered({ id, answered }) {
    this.#waiting.get(id)?.(answered);
    this.#waiting.delete(id);
  }
}
