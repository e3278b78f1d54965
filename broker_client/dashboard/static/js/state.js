/** What the server has sent: the session, the overview, every queue, jobs and the audit. */

export class State {
  constructor() {
    this.session = { authenticated: false };
    this.clear();
  }

  /** Forget what only a user who is logged in may know. */
  clear() {
    this.link = "connecting";
    this.unreachable = null;
    this.overview = null;
    this.queues = new Map();
    this.jobs = new Map();
    this.audit = [];
    this.ahead = 0; // seconds of the server's clock before this one
  }

  /** The time of the server's clock, in seconds since 1970. */
  now() {
    return Date.now() / 1000 + this.ahead;
  }

  /** Take in one event of the stream. */
  hear(name, data) {
    if (name === "heartbeat") this.ahead = data.time - Date.now() / 1000;
    else if (name === "overview") {
      this.overview = data;
      this.unreachable = null;
    } else if (name === "queues") this.#hearQueues(data);
    else if (name === "job") this.jobs.set(data.id, data);
    else if (name === "audit") this.audit = [data, ...this.audit].slice(0, 500);
    else if (name === "unreachable") this.unreachable = data.reason;
  }

  #hearQueues(data) {
    if (data.full) this.queues = new Map(data.queues.map((row) => [queueKey(row.vhost, row.name), row]));
    for (const row of data.changed ?? []) this.queues.set(queueKey(row.vhost, row.name), row);
    for (const [vhost, name] of data.gone ?? []) this.queues.delete(queueKey(vhost, name));
  }

  /** Is this known to the broker? Age, leases and the like are not to a RabbitMQ. */
  has(feature) {
    return (this.session.broker?.features ?? []).includes(feature);
  }

  can(what) {
    return Boolean(this.session.can?.[what]);
  }

  get vhosts() {
    return this.session.vhosts ?? [];
  }

  queue(vhost, name) {
    return this.queues.get(queueKey(vhost, name));
  }
}

export function queueKey(vhost, name) {
  return JSON.stringify([vhost, name]);
}
