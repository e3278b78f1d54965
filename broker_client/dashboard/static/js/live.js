/**
 * Updates from the server while the page is seen, and whether they come.
 *
 * States: "connecting" at first, "live", "lost" from the first failure until an update comes again,
 * "paused" while the tab is hidden. EventSource connects again by itself after a cut link, but not
 * after an answer that is not a stream (a proxy without its server, a session that has ended): then
 * this does, after asking `onrefused` first.
 */

const RETRY_MS = 2000;

export class Live {
  /**
   * @param {object} options
   * @param {(name: string, data: object) => void} options.onupdate
   * @param {(state: string) => void} options.onstate
   * @param {() => Promise<void>} options.onrefused called where the server has refused the stream
   * @param {string[]} options.names of the events to hear
   * @param {number} options.silence seconds without any event after which the link counts as lost
   */
  constructor({ onupdate, onstate, onrefused, names, silence }) {
    Object.assign(this, { onupdate, onstate, onrefused, names, silence });
    this.url = null;
    this.source = null;
    this.state = "connecting";
    document.addEventListener("visibilitychange", () => this.#seenOrNot());
    // A browser that goes back to this page from its cache must connect again.
    addEventListener("pageshow", (event) => event.persisted && this.open(this.url));
  }

  /** Listen to `url`, and no longer to another. */
  open(url) {
    this.url = url;
    this.#disconnect();
    if (!document.hidden) this.#connect();
  }

  /** Listen no longer. */
  close() {
    this.url = null;
    this.#disconnect();
  }

  #seenOrNot() {
    if (this.url === null) return;
    if (document.hidden) {
      this.#disconnect();
      this.#become("paused");
    } else if (this.source === null) {
      this.#connect();
    }
  }

  #connect() {
    const source = new EventSource(this.url);
    this.source = source;
    for (const name of this.names) {
      source.addEventListener(name, (event) => {
        this.#heard();
        this.onupdate(name, JSON.parse(event.data));
      });
    }
    source.addEventListener("error", () => this.#failed(source));
    this.#expect();
  }

  #disconnect() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  #heard() {
    this.#become("live");
    this.#expect();
  }

  #expect() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.#become("lost");
      this.open(this.url);
    }, this.silence * 1000);
  }

  #failed(source) {
    if (source !== this.source) return;
    this.#become("lost");
    if (source.readyState !== EventSource.CLOSED) return;
    this.#disconnect();
    this.timer = setTimeout(async () => {
      await this.onrefused();
      if (this.url !== null && this.source === null && !document.hidden) this.#connect();
    }, RETRY_MS);
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    this.onstate(state);
  }
}
