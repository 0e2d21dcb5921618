// A lane per worker of a loader: preparing a batch on a core, blocked in it, or idle.

const LANE_HEIGHT = 20;
const LANE_KINDS = [
  ["key-forward", "prepares a batch"],
  ["key-data_wait", "blocked in it: storage, sleep, lock or no free core"],
  ["line", "idle"],
];
const UNSPLIT_LANE = ["accent", "prepares a batch, running or blocked"];

function laneWords(name, lane, bins) {
  const running = knownMean(lane.running, bins);
  if (running === null) return `${name}: not there`;
  const blocked = knownMean(lane.blocked, bins) ?? 0;
  const idle = `idle ${fixed(Math.max(0, 100 - running - blocked), 0)} %`;
  if (!lane.is_split) return `${name}: prepares batches ${fixed(running, 0)} %, ${idle}`;
  return `${name}: prepares batches ${fixed(running, 0)} %, blocked in it ${fixed(blocked, 0)} %, ${idle}`;
}

function paintLane(context, lane, columns, bottom) {
  const [own, blocked, idle, unsplit] = ["key-forward", "key-data_wait", "line", "accent"].map((name) => colour(name));
  const height = LANE_HEIGHT - 4;
  for (const [x, bins] of columns.entries()) {
    const mean = knownMean(lane.running, bins);
    if (mean === null) continue;
    const running = (height * mean) / 100;
    const busy = Math.min(height, running + (height * (knownMean(lane.blocked, bins) ?? 0)) / 100);
    for (const [fill, top] of [[idle, height], [blocked, busy], [lane.is_split ? own : unsplit, running]]) {
      context.fillStyle = fill;
      context.fillRect(x, bottom - top, 1, top);
    }
  }
}

function drawLanesOf(loader, host, charts, view) {
  const lanes = charts.lanes.filter((lane) => lane.loader === loader);
  const edges = charts.lane_edges_s;
  // The loader's line is the heading, "worker 0" the name of the lane.
  const [place] = lanes[0].name.split(/ (?=worker \d+$)/);
  const names = lanes.map((lane) => lane.name.slice(place.length).trim() || lane.name);
  const kinds = lanes.every((lane) => lane.is_split) ? LANE_KINDS : [...LANE_KINDS, UNSPLIT_LANE];
  const marks = kinds.map(() => swatch());
  const entries = kinds.map(([, words], i) => element("span", { class: "entry" }, marks[i], words));
  const role = charts.roles[loader];
  const title = `Workers of the loader at ${place}${role ? `, used for ${role}` : ""}`;
  const scroll = element("div", { class: "scroll lanes", tabindex: "0", role: "group", "aria-label": title });
  host.append(scroll);
  const binAt = (time) => Math.max(0, Math.min(edges.length - 1, lowerBound(edges, time, true)) - 1);
  const words = (row, bins) => laneWords(names[row], lanes[row], bins);
  drawRows(scroll, view, {
    id: "lanes",
    title,
    legend: element("span", { class: "legend" }, ...entries),
    names,
    rowHeight: LANE_HEIGHT,
    bins: (from, to) => [binAt(from), binAt(to) + 1],
    words,
    label: (bins) => {
      const more = lanes.length > 8 ? `; and ${lanes.length - 8} more` : "";
      return lanes.slice(0, 8).map((_, row) => words(row, bins)).join("; ") + more;
    },
    paint: (context, columns) => {
      for (const [i, lane] of lanes.entries()) paintLane(context, lane, columns, (i + 1) * LANE_HEIGHT - 2);
      for (const [i, [name]] of kinds.entries()) marks[i].style.background = colour(name);
    },
  });
}

function drawLanes(charts, view) {
  const host = document.getElementById("lanes");
  if (host === null) return;
  for (const loader of new Set(charts.lanes.map((lane) => lane.loader))) drawLanesOf(loader, host, charts, view);
}
