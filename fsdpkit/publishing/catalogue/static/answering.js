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
    return JSON.parse(await this.#send("answer", asked));
  }

  // What is known of the memory and the speed of what was asked.
  async known(asked) {
    return JSON.parse(await this.#send("known", asked));
  }

  async #send(wanted, asked) {
    await this.ready;
    return new Promise((resolve) => {
      const id = this.#next++;
      this.#waiting.set(id, resolve);
      this.#worker.postMessage({ id, wanted, asked: JSON.stringify(asked) });
    });
  }

  #answered({ id, answered }) {
    this.#waiting.get(id)?.(answered);
    this.#waiting.delete(id);
  }
}
