/** Dead letters of every queue, grouped by why they died; replays, and what became of them. */

import { at, get, post } from "../api.js";
import { attempt } from "../dialogs.js";
import { h, refocus, unseen } from "../dom.js";
import { count, counted, duration, fullMoment, moment, rate } from "../format.js";
import { runJob } from "../jobs.js";
import { link } from "../route.js";
import { queueKey } from "../state.js";
import { filterField, figure, listing } from "../table.js";
import { vhostField, vhostOf } from "../vhosts.js";

const LOOKED_AT = 500;
const MOST_QUEUES = 50;
const OUTCOMES = 5;

export function deadLettersPage({ state, redraw }) {
  const own = { queues: null, groups: null, loading: false, outcomes: new Map() };
  const looksFreely = state.session.broker?.product !== "RabbitMQ";

  async function loadQueues() {
    try {
      own.queues = (await get("ui/dead-letters", { automatic: true })).queues;
      if (looksFreely) await loadOutcomes(replays(state));
    } catch {
      return;
    }
    // What died just now is known to the next sample only.
    const someLie = own.queues.some((queue) => queue.ready);
    if (looksFreely && someLie && own.groups?.looked_at === 0 && !own.loading) look();
    redraw();
  }

  async function loadOutcomes(jobs) {
    for (const job of jobs) {
      const known = own.outcomes.get(job.id);
      if (known !== undefined && known.waiting === 0 && job.state !== "running") continue;
      own.outcomes.set(job.id, await get(`${at("ui/jobs", job.id)}/outcome`, { automatic: true }));
    }
  }

  async function loadJobs() {
    try {
      const { jobs } = await get("ui/jobs", { automatic: true });
      for (const job of jobs) if (!state.jobs.has(job.id)) state.jobs.set(job.id, job);
    } catch {
      return;
    }
    await loadQueues();
  }

  async function look() {
    own.loading = true;
    redraw();
    const vhost = vhostOf();
    const result = await attempt(async () => {
      // Named, since the server's own choice is as old as its last sample.
      own.queues = (await get("ui/dead-letters")).queues;
      const queues = own.queues.filter((each) => vhost === null || each.vhost === vhost).sort((a, b) => b.ready - a.ready);
      const named = queues.slice(0, MOST_QUEUES).map((each) => [each.vhost, each.name]);
      if (named.length === 0) return { groups: [], looked_at: 0, of: 0 };
      return post("ui/dead-letters/groups", { queues: named, count: LOOKED_AT });
    });
    own.loading = false;
    if (result !== undefined) own.groups = result;
    redraw();
  }

  async function run(kind, group) {
    const { vhost, queue, origin, reason, error } = group;
    const job = await runJob(state, { kind, vhost, queue, filter: withoutEmpty({ origin, reason, error }) });
    if (job === null) return;
    await Promise.all([look(), loadQueues()]);
    requestAnimationFrame(() => refocus("groups"));
  }

  async function ask(job) {
    own.outcomes.delete(job.id);
    await attempt(() => loadOutcomes([job]));
    redraw();
  }

  loadJobs();
  if (looksFreely) look();
  return {
    title: "Dead letters",
    sampled: loadQueues,
    view: () => [
      h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Dead letters"), h("button", { type: "button", class: own.groups === null ? "primary" : null, onclick: look, disabled: own.loading }, own.groups === null ? "Look at them" : "Look again")),
      groups(state, own, looksFreely, run),
      outcomes(state, own, looksFreely ? null : ask),
      queues(state, own),
    ],
  };
}

function withoutEmpty(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== null && value !== undefined));
}

function replays(state) {
  return [...state.jobs.values()]
    .filter((job) => job.kind === "replay" && !job.dry_run)
    .sort((a, b) => b.started - a.started)
    .slice(0, OUTCOMES);
}

/* ---------------------------------------------------------------- groups */

function groups(state, own, looksFreely, run) {
  const rows = own.groups?.groups ?? [];
  const nothing = own.queues !== null && own.queues.every((queue) => !queue.ready);
  return h(
    "section",
    { class: "card", "aria-labelledby": "groups" },
    h("div", { class: "card-head" }, h("h2", { id: "groups", tabindex: "-1" }, "Why they died"), own.groups !== null && h("span", { class: "quiet number" }, lookedAt(own.groups))),
    own.groups === null
      ? h("p", { class: "quiet" }, own.loading ? "Looking …" : looksFreely ? "" : "To look, a RabbitMQ hands messages out and takes them back: they are marked as redelivered.")
      : [
          (own.groups.refused ?? []).length > 0 && h("p", { class: "quiet" }, `Left out, since the broker refuses to show them to you: ${own.groups.refused.map(([, queue]) => queue).join(", ")}.`),
          rows.length > 0 && h("div", { class: "bar" }, filterField("Filter by error, queue or reason"), vhostField(state)),
          listing({
            name: "groups of dead letters",
            stacks: true,
            rows,
            key: (row) => JSON.stringify([row.vhost, row.queue, row.origin, row.reason, row.error]),
            sort: "-count",
            search: (row) => `${row.queue} ${row.origin} ${row.reason} ${row.error}`,
            columns: groupColumns(state, own, run),
            empty: h("p", null, nothing ? "There are no dead letters." : "None was found; look again."),
          }),
        ],
  );
}

function lookedAt({ looked_at: looked, of }) {
  return looked < of && looked >= LOOKED_AT ? `The first ${count(looked)} of ${count(of)} were looked at.` : counted(looked, "message");
}

function groupColumns(state, own, run) {
  return [
    {
      id: "error",
      label: "Why",
      head: true,
      of: (row) => `${row.reason} ${row.error ?? ""}`,
      cell: (row) => [h("span", { class: "tag bad" }, row.reason || "unknown"), row.error && h("div", { class: "error-line" }, row.error)],
    },
    {
      id: "origin",
      label: "Died in",
      class: "wrap",
      of: (row) => row.origin ?? "",
      cell: (row) => (row.origin ? h("a", { href: link("queue", row.vhost, row.origin) }, row.origin) : "unknown"),
    },
    {
      id: "queue",
      label: "Lies in",
      class: "wrap",
      of: (row) => row.queue,
      cell: (row) => h("a", { href: link("queue", row.vhost, row.queue, "messages", { find: row.error ?? row.reason }) }, row.queue),
    },
    { id: "count", label: "Messages", number: true, of: (row) => row.count, cell: (row) => count(row.count) },
    { id: "oldest", label: "Oldest", wide: true, of: (row) => row.oldest, cell: (row) => when(row.oldest) },
    { id: "newest", label: "Newest", wide: true, of: (row) => row.newest, cell: (row) => when(row.newest) },
    {
      id: "steps",
      label: unseen("Actions"),
      class: "num",
      cell: (row) => {
        const what = `${row.count} ${row.reason || "unknown"} of ${row.origin || "unknown"}`;
        return (
          state.can("messages") &&
          h(
            "span",
            { class: "buttons end" },
            row.origin &&
              (lacks(own, row, "publish")
                ? h("small", null, "You may not replay: it needs the permission write for amq.default.")
                : h("button", { type: "button", class: "primary", onclick: () => run("replay", row) }, "Replay …", unseen(what))),
            h("button", { type: "button", class: "danger", onclick: () => run("delete", row) }, "Delete …", unseen(what)),
          )
        );
      },
    },
  ];
}

function lacks(own, { vhost, queue }, permission) {
  const found = own.queues?.find((each) => each.vhost === vhost && each.name === queue);
  return found?.lacking.includes(permission) ?? false;
}

function when(seconds) {
  return seconds ? h("span", { class: "number", title: fullMoment(seconds) }, moment(seconds)) : "–";
}

/* ---------------------------------------------------------------- outcomes */

function outcomes(state, own, ask) {
  const rows = replays(state);
  if (rows.length === 0) return null;
  return h(
    "section",
    { class: "card", "aria-labelledby": "outcomes", id: "what-became" },
    h("h2", { id: "outcomes" }, "What became of what was replayed"),
    h("ul", { class: "attention" }, rows.map((job) => h("li", { key: job.id }, outcome(job, own.outcomes.get(job.id)), ask && h("button", { type: "button", onclick: () => ask(job) }, "What became of it?")))),
  );
}

function outcome(job, found) {
  const who = h("span", { class: "why" }, `${counted(job.moved, "message")} of `, h("a", { href: link("queue", job.vhost, job.queue) }, job.queue), `, by ${job.user} at ${moment(job.started)}`);
  if (found === undefined) return [who, h("span", { class: "quiet" }, job.state)];
  const { handled, waiting, back } = found;
  return [
    who,
    h(
      "span",
      { class: "tags" },
      h("span", { class: handled > 0 ? "tag good" : "tag" }, `${count(handled)} handled`),
      waiting > 0 && h("span", { class: "tag accent" }, `${count(waiting)} waiting`),
      back > 0 && h("span", { class: "tag bad" }, `${count(back)} dead again`),
    ),
  ];
}

/* ---------------------------------------------------------------- queues */

function queues(state, own) {
  if (own.queues === null) return null;
  const vhost = vhostOf();
  const rows = own.queues.filter((row) => vhost === null || row.vhost === vhost);
  return h(
    "section",
    { class: "card", "aria-labelledby": "dead-queues" },
    h("h2", { id: "dead-queues" }, "Queues that dead letters come to"),
    listing({
      name: "queues of dead letters",
      prefix: "q",
      rows,
      key: (row) => queueKey(row.vhost, row.name),
      sort: "-ready",
      empty: "No queue has a dead-letter exchange that leads to another queue.",
      columns: [
        { id: "name", label: "Queue", head: true, of: (row) => row.name, cell: (row) => h("a", { href: link("queue", row.vhost, row.name) }, row.name) },
        { id: "ready", label: "Messages", number: true, of: (row) => row.ready ?? 0, cell: (row) => figure(row.ready ?? 0) },
        { id: "growing", label: "Grows /s", number: true, of: (row) => row.growing ?? 0, cell: (row) => figure(row.growing ?? 0, rate) },
        {
          id: "from",
          label: "From",
          class: "wrap",
          wide: true,
          cell: (row) => (row.from ?? []).slice(0, 6).map(([from, name], index) => [index > 0 && ", ", h("a", { href: link("queue", from, name) }, name)]),
        },
        state.has("age") && { id: "age", label: "Oldest", number: true, of: (row) => ageOf(state, row), cell: (row) => duration(ageOf(state, row)) },
      ].filter(Boolean),
    }),
  );
}

function ageOf(state, row) {
  return row.ready ? (state.queue(row.vhost, row.name)?.age ?? null) : null;
}
