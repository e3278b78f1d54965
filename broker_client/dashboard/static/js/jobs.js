/** Moves, replays and deletions: counted first, confirmed, then run by the server and followed. */

import { ApiError, at, get, post } from "./api.js";
import { attempt, field, form, say } from "./dialogs.js";
import { h } from "./dom.js";
import { count, counted } from "./format.js";

const POLL_MS = 1000;
const MANY = 100; // messages from which on one may want to limit how fast they go

const WORDS = {
  move: { verb: "Move", doing: "Moving", done: "moved" },
  replay: { verb: "Replay", doing: "Replaying", done: "replayed" },
  delete: { verb: "Delete", doing: "Deleting", done: "deleted" },
};

/**
 * Count what a job would take, ask, and run it; resolves to the job as it ended, or null.
 *
 * @param {State} state
 * @param {object} request of POST ui/jobs, without `dry_run`
 */
export async function runJob(state, request) {
  const plan = await attempt(() => post("ui/jobs", { ...request, dry_run: true }));
  if (plan === undefined) return null;
  if (plan.count === 0) {
    say("None of these messages is ready now: they are gone, or a consumer holds them.");
    return null;
  }
  const words = WORDS[request.kind];
  const many = `${counted(plan.count, "message")}${plan.more ? " or more" : ""}`;
  const isLong = request.kind !== "delete" && plan.count >= MANY;
  const body = [
    h("p", null, consequence(request, plan)),
    isLong && field("Messages a second, at most", h("input", { name: "rate", type: "number", min: "1", step: "1" }), "Empty: as fast as it goes. A limit leaves consumers their share."),
  ];
  const values = await form(`${words.verb} ${many}?`, body, `${words.verb} ${many}`, { danger: request.kind === "delete" });
  if (values === null) return null;
  // No more than was agreed to, though more may have come meanwhile.
  const most = plan.more ? {} : { limit: plan.count };
  const rate = values.rate ? { rate: Number(values.rate) } : {};
  const job = await attempt(() => post("ui/jobs", { ...request, ...most, ...rate, dry_run: false }));
  if (job === undefined) return null;
  const ended = await followed(state, job);
  sayEnd(ended);
  return ended;
}

function consequence({ kind, queue, to }, plan) {
  if (kind === "delete") return `They are removed from ${queue} for good.`;
  if (kind === "move") return `From ${queue} to ${to}. Each is removed once its copy is confirmed.`;
  return [
    "Each goes back to the queue where it died, and is removed from here once its copy is confirmed.",
    h(
      "ul",
      null,
      (plan.groups ?? []).slice(0, 8).map((group) =>
        h("li", null, `${count(group.count)} to ${group.queue || "where they were published"}`, group.reason && `: ${group.reason}`, group.error && `, ${group.error}`),
      ),
    ),
  ];
}

/** Note what an answer says of a job. The stream may have been faster, and said that it has ended. */
function learn(state, job) {
  if ((state.jobs.get(job.id)?.state ?? "running") === "running") state.jobs.set(job.id, job);
}

async function followed(state, job) {
  learn(state, job);
  for (;;) {
    const known = state.jobs.get(job.id) ?? job;
    if (known.state !== "running") return known;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS / 5));
    if (state.link === "live") continue;
    try {
      learn(state, await get(at("ui/jobs", job.id), { automatic: true }));
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 0) return { ...known, state: "failed", error: error.message };
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

function sayEnd(job) {
  const words = WORDS[job.kind];
  const moved = `${counted(job.moved ?? 0, "message")} ${words.done}.`;
  if (job.state === "failed") say(`${moved} Then it failed: ${job.error}`, { bad: true });
  else if (job.refused > 0) say(`${moved} ${count(job.refused)} could not be routed and stay where they were.`, { bad: true });
  else say(job.state === "stopped" ? `Stopped. ${moved}` : moved);
}

/** What runs now, with its progress, on every page. */
export function jobStrip(state) {
  const running = [...state.jobs.values()].filter((job) => job.state === "running" && !job.dry_run);
  if (running.length === 0) return null;
  return h(
    "section",
    { class: "card", "aria-label": "Running", key: "jobs" },
    running.map((job) =>
      h(
        "div",
        { class: "job", key: job.id },
        h("span", null, `${WORDS[job.kind].doing} messages of ${job.queue}: `, h("b", { class: "number" }, count(job.moved)), job.total ? ` of ${count(job.total)}` : ""),
        h("progress", { max: job.total || 1, value: job.total ? job.moved : null, "aria-label": `${WORDS[job.kind].doing} messages of ${job.queue}` }),
        h("button", { type: "button", onclick: () => attempt(() => post(at("ui/jobs", job.id, "stop"))) }, "Stop"),
      ),
    ),
  );
}
