// The worker as a promise: ask(asked) is what `fsdpkit submit … --dry-run` would have written.
export class Answering {
  #worker;
  #waiting = new Map();
  #next = 0;
  #fail;

  constructor() {
    this.ready = new Promise((resolve, reject) => {
      this.#fail = reject;
      this.#worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
      this.#worker.onerror = (event) => reject(new Error(event.message || "it could not be loaded"));
      this.#worker.onmessage = ({ data }) => {
        if (data.ready) resolve();
        else if (data.failed) reject(new Error(data.failed));
        else this.#answered(data);
      };
    });
    this.ready.catch(() => {}); // whoever asks hears of it
  }

  async ask(asked) {
    return JSON.parse(await this.#send("answer", asked));
  }

  // A sentence about the memory of what was asked, or nothing.
  async memory(asked) {
    return this.#send("memory", asked);
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
