// "What happened here": the steps of the window, their parts compared with the whole run's, and events.

const SHOWN_EVENTS = 12;
// A part under this share of a step, here and in the whole run, has no row of its own.
const SMALL_PART = 0.005;
const EVENT_NAMES = {
  outlier: ["outlier step"],
  "slow fetch": ["slow fetch", "slow fetches"],
  "slow batch": ["slow batch", "slow batches"],
  gc: ["gc pause"],
  evaluation: ["validation"],
  compile: ["compilation"],
  empty_cache: ["emptied cache"],
};

function sumOf(array, first = 0, last = array.length) {
  let sum = 0;
  for (let i = first; i < last; i++) sum += array[i];
  return sum;
}

/** Step times of bins [first, last), ascending: all where a bin is a step, else 20 for each. */
function stepTimes({ per_bin, count: counts, min_s, p50_s, p95_s, max_s }, first, last) {
  if (per_bin === 1) return p50_s.slice(first, last).sort();
  const values = [];
  for (let i = first; i < last; i++) {
    const n = Math.max(1, Math.round((20 * counts[i]) / per_bin));
    for (let share = 0.5 / n; share < 1; share += 1 / n) {
      if (share <= 0.5) values.push(min_s[i] + (p50_s[i] - min_s[i]) * (share / 0.5));
      else if (share <= 0.95) values.push(p50_s[i] + (p95_s[i] - p50_s[i]) * ((share - 0.5) / 0.45));
      else values.push(p95_s[i] + (max_s[i] - p95_s[i]) * ((share - 0.95) / 0.05));
    }
  }
  return Float64Array.from(values).sort();
}

/** A quantile of ascending values, linear between them; null of none. */
function quantile(values, share) {
  if (values.length === 0) return null;
  const place = share * (values.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, values.length - 1);
  return values[below] + (values[above] - values[below]) * (place - below);
}

/** A part's time compared with the whole run's: "2.1x more", "none here". */
function comparedWords(here, all) {
  if (here === 0) return all === 0 ? "" : "none here";
  if (all === 0) return "only here";
  const ratio = here / all;
  if (ratio > 1.05) return ratio >= 100 ? "over 100x more" : `${fixed(ratio, 1)}x more`;
  if (ratio < 0.95) return ratio <= 0.01 ? "almost none here" : `${fixed(1 / ratio, 1)}x less`;
  return "the same";
}

/** Mean seconds per step by ledger key, in bins [first, last) and in all; small ones last, added up. */
function partsOf({ steps, labels }, first, last) {
  const meanOf = (sums) => [
    sumOf(sums, first, last) / sumOf(steps.count, first, last),
    sumOf(sums) / sumOf(steps.count),
  ];
  const whole = meanOf(steps.total_s);
  const parts = [];
  const rest = { key: null, label: "everything else", here: 0, all: 0 };
  for (const [key, sums] of Object.entries(steps.parts_s)) {
    const [here, all] = meanOf(sums);
    if (here >= SMALL_PART * whole[0] || all >= SMALL_PART * whole[1]) {
      parts.push({ key, label: labels[key] ?? key, here, all });
    } else {
      rest.here += here;
      rest.all += all;
    }
  }
  parts.sort((a, b) => Math.max(b.here, b.all) - Math.max(a.here, a.all));
  return rest.here > 0 || rest.all > 0 ? [...parts, rest] : parts;
}

/** Indices of the events that lie in the window at least in part, longest first. */
function eventsIn({ start_s, seconds: took }, { from, to }) {
  const inside = [...start_s.keys()].filter((i) => start_s[i] < to && start_s[i] + took[i] > from);
  return inside.sort((a, b) => took[b] - took[a]);
}

/** Figures of the steps in a window, times in seconds; null without steps. */
function describeSteps(charts, view) {
  const { steps } = charts;
  const [first, last] = view.bins();
  if (last === first) return null;
  const times = stepTimes(steps, first, last);
  const parts = partsOf(charts, first, last);
  const n = sumOf(steps.count, first, last);
  const meanOfAll = sumOf(steps.total_s) / sumOf(steps.count);
  const grown = parts
    .filter((part) => part.key !== null && part.here - part.all > 0.05 * meanOfAll)
    .sort((a, b) => b.here - b.all - (a.here - a.all));
  // Where most parts took longer by the same factor, none of them is what made the difference.
  const mean = sumOf(steps.total_s, first, last) / n;
  const near = parts.filter(({ here, all }) => Math.abs(Math.log((here * meanOfAll) / (all * mean))) < Math.log(1.25));
  const isAlike = grown.length > 0 && grown[0].here - grown[0].all < 0.6 * (mean - meanOfAll) && near.length > parts.length / 2;
  return {
    n,
    numbers: [steps.first[first] + 1, steps.first[last - 1] + steps.count[last - 1]],
    mean,
    meanOfAll,
    median: quantile(times, 0.5),
    p95: quantile(times, 0.95),
    longest: steps.max_s.subarray(first, last).reduce((x, y) => Math.max(x, y)),
    outliers: sumOf(steps.outliers, first, last),
    isAbout: steps.per_bin > 1,
    parts,
    grown: isAlike ? null : (grown[0] ?? null),
  };
}

function headline(description, view, whole, hasWarmUp) {
  const digits = (view.to - view.from) / 1000;
  const span = view.isWhole
    ? `${whole[0].toUpperCase()}${whole.slice(1)}, ${seconds(view.to - view.from)}`
    : `${clock(view.from, digits, view.to)} to ${clock(view.to, digits)}`;
  if (description === null) return `${span}: no steps.`;
  const { n, mean, meanOfAll, grown } = description;
  const compared = view.isWhole ? "" : ` (${seconds(meanOfAll)} in ${whole})`;
  // The figures at the top of the page are without it.
  const words = `${span}${hasWarmUp ? ", with warm-up" : ""}: ${counted(n, "step")}, mean ${seconds(mean)}${compared}.`;
  if (view.isWhole || grown === null) return words;
  const [by, added] = [grown.here - grown.all, mean - meanOfAll];
  // Others may have become shorter.
  const of = by <= added ? ` of the ${seconds(added)} more` : " a step";
  const label = `${grown.label[0].toUpperCase()}${grown.label.slice(1)}`;
  return `${words} ${label} adds ${seconds(by)}${of}.`;
}

function table(caption, heads, rows) {
  const names = heads.map((head) => element("th", { scope: "col" }, head));
  const head = element("thead", {}, element("tr", {}, ...names));
  const made = element("table", {}, element("caption", {}, caption), head, element("tbody", {}, ...rows));
  return element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, made);
}

function row(first, ...others) {
  const cells = others.map((cell) => element("td", {}, cell));
  return element("tr", {}, element("th", { scope: "row" }, first), ...cells);
}

function stepFigures({ n, numbers, mean, median, p95, longest, outliers, isAbout }) {
  const about = isAbout ? "about " : "";
  const figures = [
    ["steps", `${count(n)} (${numbers.map(count).join(" to ")})`],
    ["mean step", seconds(mean)],
    ["median", about + seconds(median)],
    ["p95", about + seconds(p95)],
    ["longest", seconds(longest)],
    ["outliers", count(outliers)],
  ];
  const entries = figures.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value)),
  );
  return element("dl", { class: "figures" }, ...entries);
}

function partsTable({ parts, mean, grown }, view, whole) {
  const rows = parts.map((part) => {
    const mark = swatch();
    mark.style.background = part.key === null ? colour("muted") : keyColour(part.key);
    const compared = view.isWhole
      ? [percent(part.here / mean)]
      : [seconds(part.all), comparedWords(part.here, part.all)];
    const made = row(element("span", {}, mark, part.label), seconds(part.here), ...compared);
    if (!view.isWhole && part === grown) made.className = "differs";
    return made;
  });
  const heads = view.isWhole ? ["a step", "share"] : ["here", whole.replace("the ", ""), "difference"];
  return table("Mean time of a step by part", ["Part", ...heads], rows);
}

function eventCounts(events, indices, place) {
  const sums = new Map();
  for (const i of indices) {
    const [n, took] = sums.get(events.kind[i]) ?? [0, 0];
    sums.set(events.kind[i], [n + 1, took + events.seconds[i]]);
  }
  const words = [...sums]
    .sort((a, b) => b[1][1] - a[1][1])
    .map(([number, [n, took]]) => {
      const kind = events.kinds[number];
      // Of those that happened most often, the shorter ones are not in the page.
      const least = kind in events.dropped ? "at least " : "";
      return `${least}${counted(n, ...(EVENT_NAMES[kind] ?? [kind]))} (${seconds(took)})`;
    });
  return `${place}: ${words.join(", ") || "no outliers, slow fetches, syncs or pauses"}.`;
}

/** Labels of events with the base names of files, of those whose name no other file has. */
function shortLabels(labels) {
  const folders = new Map();
  const parts = labels.map((label) => /^(.* at |)([^:]*[\\/]|)([^\\/:]+)(?=:\d)/s.exec(label));
  for (const [, , folder, file] of parts.filter(Boolean)) {
    folders.set(file, (folders.get(file) ?? new Set()).add(folder));
  }
  return labels.map((label, i) => {
    const [, before, folder, file] = parts[i] ?? [];
    return folders.get(file)?.size === 1 ? before + label.slice(before.length + folder.length) : label;
  });
}

/** Without waits that are a slow fetch of the training process itself: it has the same step and time. */
function withoutRepeated({ kinds, kind, step, seconds: took }, indices) {
  const is = (i, name) => kinds[kind[i]] === name;
  const fetches = new Map(indices.filter((i) => is(i, "slow fetch")).map((i) => [step[i], took[i]]));
  return indices.filter((i) => !is(i, "slow batch") || !(Math.abs(fetches.get(step[i]) / took[i] - 1) < 0.02));
}

/** The longest events, of each kind at most its share of the rows. */
function longestOf(events, indices, isWhole) {
  const most = Math.min(isWhole ? 3 : SHOWN_EVENTS, Math.ceil(SHOWN_EVENTS / new Set(indices.map((i) => events.kind[i])).size));
  const numbers = new Map();
  const shown = indices.filter((i) => {
    const number = (numbers.get(events.kind[i]) ?? 0) + 1;
    numbers.set(events.kind[i], number);
    return number <= most;
  });
  return shown.slice(0, SHOWN_EVENTS);
}

function eventsTable({ events, labels }, indices, view) {
  const digits = (view.to - view.from) / 1000;
  const distinct = withoutRepeated(events, indices);
  const shown = longestOf(events, distinct, view.isWhole);
  const short = shortLabels(events.labels);
  const rows = shown.map((i) => {
    const kind = events.kinds[events.kind[i]];
    const label = events.labels[events.label[i]] ?? "";
    // An outlier's is the part that grew most.
    const words = kind === "outlier" ? `${labels[label] ?? label} grew most` : short[events.label[i]] ?? "";
    const step = events.step[i] < 0 ? "" : count(events.step[i] + 1);
    const name = (EVENT_NAMES[kind] ?? [kind])[0];
    const where = element("span", { title: label }, words);
    return row(name, clock(events.start_s[i], digits), seconds(events.seconds[i]), step, where);
  });
  const more = distinct.length - shown.length;
  const caption = more > 0 ? `The longest of each kind (${count(more)} more)` : "What took long";
  return table(caption, ["What", "at", "took", "step", "where"], rows);
}

/** Keeps the table at what the window shows. */
function drawWindowTable(charts, view, whole) {
  const host = document.getElementById("window-table");
  if (host === null) return;
  const words = element("p", { class: "headline", "aria-live": "polite" });
  const body = element("div", { class: "window-body" });
  host.append(element("h3", {}, "What happened here"), words, body);
  // It scrolls by itself where it stands next to the charts.
  for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", "What happened here"]]) {
    host.setAttribute(name, value);
  }
  const draw = () => {
    const description = describeSteps(charts, view);
    const indices = eventsIn(charts.events, view);
    Object.assign(host.dataset, { from: view.from, to: view.to, steps: description?.n ?? 0 });
    const hasWarmUp = charts.spans.some(({ kind, end_s }) => kind === "warmup" && end_s > view.from);
    const said = headline(description, view, whole, hasWarmUp);
    if (words.textContent !== said) words.textContent = said;
    body.replaceChildren();
    const place = view.isWhole ? `In ${whole}` : "Here";
    if (description !== null) body.append(stepFigures(description));
    body.append(element("p", {}, eventCounts(charts.events, indices, place)));
    if (description !== null) body.append(partsTable(description, view, whole));
    if (indices.length > 0) body.append(eventsTable(charts, indices, view));
  };
  view.listeners.push(draw);
  keepDrawn(draw);
}
