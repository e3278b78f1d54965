/** Places the nodes of a directed graph in columns, so that most edges point to the right. */

const COLUMN = 350; // leaves room for the longest label between two nodes
const ROW = 62;
export const NODE = { width: 190, height: 44 };

/**
 * @param {{id: string}[]} nodes
 * @param {{from: string, to: string}[]} edges
 * @returns {{places: Map<string, {x: number, y: number}>, width: number, height: number}}
 */
export function laidOut(nodes, edges) {
  const forward = withoutCycles(nodes, edges);
  const columns = inColumns(nodes, forward);
  for (let sweep = 0; sweep < 4; sweep += 1) untangle(columns, forward, sweep % 2 === 0);
  const places = new Map();
  const height = Math.max(1, ...columns.map((column) => column.length)) * ROW;
  columns.forEach((column, x) => {
    const start = (height - column.length * ROW) / 2;
    column.forEach((id, y) => places.set(id, { x: 10 + x * COLUMN, y: start + y * ROW + (ROW - NODE.height) / 2 }));
  });
  return { places, width: 20 + (columns.length - 1) * COLUMN + NODE.width, height };
}

/* The edges but those that lead back to a node on the way to them. */
function withoutCycles(nodes, edges) {
  const outgoing = new Map(nodes.map(({ id }) => [id, []]));
  for (const edge of edges) if (outgoing.has(edge.to)) outgoing.get(edge.from)?.push(edge);
  const kept = [];
  const state = new Map();
  for (const { id: start } of nodes) {
    if (state.has(start)) continue;
    const path = [{ id: start, next: 0 }];
    state.set(start, "open");
    while (path.length > 0) {
      const top = path.at(-1);
      const edge = outgoing.get(top.id)[top.next];
      top.next += 1;
      if (edge === undefined) {
        state.set(top.id, "done");
        path.pop();
      } else if (state.get(edge.to) !== "open") {
        kept.push(edge);
        if (!state.has(edge.to)) {
          state.set(edge.to, "open");
          path.push({ id: edge.to, next: 0 });
        }
      }
    }
  }
  return kept;
}

/* A node stands one column behind the last of those that lead to it. */
function inColumns(nodes, edges) {
  const before = new Map(nodes.map(({ id }) => [id, 0]));
  const outgoing = new Map(nodes.map(({ id }) => [id, []]));
  for (const { from, to } of edges) {
    before.set(to, before.get(to) + 1);
    outgoing.get(from).push(to);
  }
  const depth = new Map(nodes.map(({ id }) => [id, 0]));
  const ready = nodes.map(({ id }) => id).filter((id) => before.get(id) === 0);
  for (let at = 0; at < ready.length; at += 1) {
    for (const to of outgoing.get(ready[at])) {
      depth.set(to, Math.max(depth.get(to), depth.get(ready[at]) + 1));
      before.set(to, before.get(to) - 1);
      if (before.get(to) === 0) ready.push(to);
    }
  }
  const columns = [];
  for (const { id } of nodes) (columns[depth.get(id)] ??= []).push(id);
  return Array.from(columns, (column) => column ?? []);
}

/* Each node goes to the mean place of its neighbours in the column beside. */
function untangle(columns, edges, forwards) {
  const place = new Map();
  const note = (column) => column.forEach((id, y) => place.set(id, y - column.length / 2));
  columns.forEach(note);
  const neighbours = new Map();
  for (const { from, to } of edges) {
    const [moved, fixed] = forwards ? [to, from] : [from, to];
    if (!neighbours.has(moved)) neighbours.set(moved, []);
    neighbours.get(moved).push(fixed);
  }
  for (const column of forwards ? columns : columns.toReversed()) {
    const mean = new Map(
      column.map((id) => {
        const beside = neighbours.get(id) ?? [];
        if (beside.length === 0) return [id, place.get(id)];
        return [id, beside.reduce((sum, other) => sum + place.get(other), 0) / beside.length];
      }),
    );
    column.sort((a, b) => mean.get(a) - mean.get(b));
    note(column);
  }
}
