// Charts over time, all on the axis of one window.

// Width of the vertical axes, the same in all charts, so that their times lie below each other.
const GUTTER = 62;
const RIGHT = 20;
const TICK_SPACE = 70;
const AXIS_FONT = "11px system-ui, sans-serif";
// CSS pixels of a column in which bins are drawn as one.
const COLUMN = 2;
const WIDE_SPREAD = 20;
// Epochs closer than this, in CSS pixels, are not all marked.
const LEAST_EPOCH = 24;
const WAIT_KEYS = ["loader_start", "first_batch", "data_wait", "loader_end"];
const PANELS = [
  ["cpu", "CPU", "100 % is one core"],
  ["memory", "Memory of the process tree", "", "process tree"],
  ["memory", "Memory available on the host", "", "host"],
  ["disk", "Disk"],
  ["network", "Network"],
  ["gpu_utilization", "GPU utilisation"],
  ["gpu_memory", "GPU memory"],
  ["gpu_power", "GPU power"],
];
const SHADES = [
  ["startup", "start-up, exit", "muted"],
  ["warmup", "warm-up", "warn"],
  ["evaluation", "validation", "good"],
  ["shutdown", "", "muted"],
];
const DECIMAL_STEPS = Array.from({ length: 60 }, (_, i) => Number(`${[1, 2, 5][i % 3]}e${Math.floor(i / 3) - 7}`));
const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const CLOCK_STEPS = DECIMAL_STEPS.filter((step) => step <= 20);
CLOCK_STEPS.push(30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 36000, 86400, 172800, 864000);

/**
 * Bins in a window, those of one column of the chart added up; arrays of shape (n_columns,).
 *
 * From each `time` on column `at` is drawn: none (-1) in evaluation, and where no step goes on. What
 * lies before an evaluation and what lies after it are never one column.
 */
function columnsOf(steps, spans, view, width) {
  const first = lowerBound(steps.end_s, view.from, true);
  const last = Math.max(first, lowerBound(steps.start_s, view.to));
  const scale = width / COLUMN / (view.to - view.from);
  const isFew = last - first <= width / COLUMN;
  const columnAt = (bin) => Math.floor((steps.start_s[bin] - view.from) * scale);
  const evaluations = spans.filter((span) => span.kind === "evaluation");
  const begins = evaluations.map((span) => span.start_s);
  const starts = [];
  const edges = [];
  for (let bin = first, known = 0; bin < last; bin++) {
    const [start, end] = [steps.start_s[bin], steps.end_s[bin]];
    const [before, within] = [lowerBound(begins, start), lowerBound(begins, end)];
    if (isFew || bin === first || within > known || columnAt(bin) !== columnAt(bin - 1)) {
      if (bin > first && (start - steps.end_s[bin - 1]) * scale > 1) edges.push([steps.end_s[bin - 1], -1]);
      edges.push([start, starts.length]);
      starts.push(bin);
    }
    for (const evaluation of evaluations.slice(before, within)) {
      edges.push([evaluation.start_s, -1]);
      if (evaluation.end_s < end) edges.push([evaluation.end_s, starts.length - 1]);
    }
    known = before;
  }
  if (edges.length > 0 && edges[edges.length - 1][1] >= 0) edges.push([steps.end_s[last - 1], starts.length - 1]);
  const of = (make) => starts.map((start, i) => make(start, starts[i + 1] ?? last));
  const perStep = (sums) => of((a, b) => sumOf(sums, a, b) / sumOf(steps.count, a, b));
  return {
    time: edges.map(([time]) => time),
    at: edges.map(([, column]) => column),
    isEach: steps.per_bin === 1 && starts.length === last - first,
    mean: perStep(steps.total_s),
    median: of((a, b) => quantile(stepTimes(steps, a, b), 0.5)),
    least: of((a, b) => steps.min_s.subarray(a, b).reduce((x, y) => Math.min(x, y))),
    most: of((a, b) => steps.max_s.subarray(a, b).reduce((x, y) => Math.max(x, y))),
    parts: Object.fromEntries(Object.entries(steps.parts_s).map(([key, sums]) => [key, perStep(sums)])),
  };
}

/** Values of what is drawn from each time on. */
function drawnAt(at, values) {
  return at.map((column) => values[column] ?? null);
}

/*
 * What a chart shows: id, title, note, unit, height; `lines`, each with a name, a colour and how it
 * is drawn; `bands` [upper line, lower line, colour] filled between; `values()`, times and then an
 * array per line; `limits` of the vertical axis.
 */

function stepTimeSpec({ steps }, columns) {
  const longest = steps.max_s.reduce((x, y) => Math.max(x, y));
  const typical = quantile(stepTimes(steps, 0, steps.count.length), 0.5);
  // Where each step is drawn alone, all figures of a column are its time.
  const isEach = () => columns().isEach;
  return {
    id: "step-time",
    title: "Step time",
    unit: "s",
    height: 210,
    isStepped: true,
    hasLog: longest > WIDE_SPREAD * typical,
    hasMarks: true,
    lines: [
      { isHidden: isEach, name: "shortest to longest", from: 1, colour: () => faded(colour("accent"), 0.3), width: 0 },
      { isHidden: () => true, name: "shortest", colour: () => faded(colour("accent"), 0.3), width: 0 },
      { isHidden: isEach, name: "mean", colour: () => colour("warn"), width: 1 },
      {
        get name() {
          return isEach() ? "step" : steps.per_bin > 1 ? "about median" : "median";
        },
        colour: () => colour("accent"),
        width: 1.6,
      },
    ],
    bands: [[0, 1, () => faded(colour("accent"), 0.22)]],
    values: () => {
      const { time, at, most, least, mean, median } = columns();
      return [time, ...[most, least, mean, median].map((values) => drawnAt(at, values))];
    },
  };
}

function partsSpec({ steps, labels }, columns) {
  const total = sumOf(steps.total_s);
  const keys = Object.keys(steps.parts_s).filter((key) => sumOf(steps.parts_s[key]) > 0.002 * total);
  return {
    id: "parts",
    title: "Parts of a step",
    unit: "s",
    height: 190,
    isStepped: true,
    isStack: true,
    // Painted from the top of the stack down: each hides what of the others lies below it.
    lines: [...keys].reverse().map((key) => ({
      name: labels[key] ?? key,
      colour: () => keyColour(key),
      width: 0,
      opacity: 1,
    })),
    values: () => {
      const { time, at, parts, mean } = columns();
      const sums = mean.map(() => 0);
      const layers = keys.map((key) => parts[key].map((value, i) => (sums[i] += value)));
      return [time, ...layers.map((layer) => drawnAt(at, layer)).reverse()];
    },
  };
}

function waitSpec({ steps }, columns) {
  const keys = WAIT_KEYS.filter((key) => key in steps.parts_s);
  if (keys.length === 0) return null;
  return {
    id: "loader-wait",
    title: "Data loading",
    note: "share of a step that training waits for its loader",
    unit: "%",
    height: 110,
    isStepped: true,
    limits: [0, 100],
    lines: [{ name: "waiting", colour: () => keyColour("data_wait"), width: 1, opacity: 0.4 }],
    values: () => {
      const { time, at, mean, parts } = columns();
      const shares = mean.map((total, i) => (100 * sumOf(keys.map((key) => parts[key][i]))) / total);
      return [time, drawnAt(at, shares)];
    },
  };
}

/** Not observed is a gap in the line. */
function withGaps(values) {
  return Array.from(values, (value) => (Number.isNaN(value) ? null : value));
}

function machineSpec({ time_s, series }, [panel, title, note, of = ""]) {
  const shown = series.filter((each) => each.panel === panel && each.name.startsWith(of));
  if (shown.length === 0) return null;
  const colourOf = (i) => lineColour(i, shown.length);
  const lines = shown.map(({ name }, i) => ({ name, colour: () => colourOf(i), width: 1.3 }));
  const values = [time_s, ...shown.map(({ mean }) => withGaps(mean))];
  const bands = [];
  for (const [i, { name, peak }] of shown.entries()) {
    // Of many lines the bands would cover each other.
    if (peak === null || shown.length > 4) continue;
    lines.push({ name: `${name}, peak`, isHidden: () => true, colour: () => colourOf(i), width: 0 });
    values.push(withGaps(peak));
    bands.push([lines.length - 1, i, () => faded(colourOf(i), 0.25)]);
  }
  const most = values.slice(1).reduce((x, line) => line.reduce((a, b) => Math.max(a, b ?? 0), x), 0);
  const top = panel === "gpu_utilization" ? 100 : 1.08 * Math.max(most, panel === "cpu" ? 100 * Math.round(most / 100) : 0);
  const limits = [0, top > 0 ? top : 1];
  const id = `${panel.replace("_", "-")}${of === "host" ? "-host" : ""}`;
  return { id, title, note, unit: shown[0].unit, height: 120, lines, bands, limits, values: () => values };
}

/** A line's value, null where not observed; in a stack what it adds, not where its edge lies. */
function valueAt(spec, data, line, index) {
  const value = data[line + 1][index];
  return spec.isStack && value !== null && line + 2 < data.length ? value - data[line + 2][index] : value;
}

function clocks(times, step) {
  return times.map((time) => clock(time, step, times[times.length - 1]));
}

/** Ticks of a vertical axis: in one unit, or on a logarithmic axis each in its own. */
function tickWords(unit, isLog) {
  return (_, splits) => {
    const largest = splits.reduce((x, y) => Math.max(x, y), 0);
    const [factor, name] = TIME_UNITS.find(([, , limit]) => largest < limit);
    return splits.map((split) => {
      if (unit !== "s" || isLog) return FORMATS[unit](split).replace(/\.0+(?= )/, "");
      return `${(split / factor).toLocaleString("en-US", { maximumFractionDigits: 2 })} ${name}`;
    });
  };
}

/** 1, 2 and 5 of each power of ten, or 1 alone, as there is room for. */
function logTicks(_, __, least, most) {
  const ticks = DECIMAL_STEPS.filter((step) => step >= least && step <= most);
  return ticks.length <= 6 ? ticks : ticks.filter((step) => /^1(e|0|$)|^0\.0*1$/.test(String(step)));
}

/** Upper end of a stack: a few long columns are cut off, or the others could not be seen. */
function cutAt(values, most) {
  const usual = quantile(Float64Array.from(values).sort(), 0.98) ?? 0;
  return usual > 0 && most > 3 * usual ? 2 * usual : most;
}

function verticalRange(spec, isLog) {
  return (chart, least, most) => {
    if (spec.limits !== undefined) return spec.limits;
    if (isLog) return most > 0 ? [Math.max(least, most / 1e6) * 0.8, most * (spec.hasMarks ? (most / Math.max(least, most / 1e6)) ** 0.12 * 1.2 : 1.3)] : [1e-3, 1];
    const top = spec.isStack ? cutAt(chart.data[1], most) : most;
    // Above the data there is room for the numbers of epochs.
    return [0, top > 0 ? top * (spec.hasMarks ? 1.14 : 1.08) : 1];
  };
}

/** Shades what is not training, marks epochs, with their numbers where `hasNumbers`. */
function drawSpans(chart, spans, hasNumbers) {
  const { ctx: context, bbox } = chart;
  const ratio = window.devicePixelRatio || 1;
  const shades = new Map(SHADES.map(([kind, , name]) => [kind, faded(colour(name), 0.17)]));
  Object.assign(context, { font: `${11 * ratio}px system-ui, sans-serif`, textBaseline: "top", textAlign: "left" });
  let [free, freeText] = [bbox.left, bbox.left];
  for (const { kind, start_s, end_s, label } of spans) {
    const [from, to] = [start_s, end_s].map((time) => chart.valToPos(time, "x", true));
    const left = Math.max(from, bbox.left);
    const right = Math.min(to, bbox.left + bbox.width);
    const isEpoch = kind === "epoch";
    if (right < left || (isEpoch && left < free)) continue;
    context.fillStyle = isEpoch ? faded(colour("muted"), 0.5) : (shades.get(kind) ?? "transparent");
    context.fillRect(left, bbox.top, Math.max(ratio, right - left), bbox.height);
    if (isEpoch) free = left + LEAST_EPOCH * ratio;
    const end = left + context.measureText(label).width + 8 * ratio;
    if (!isEpoch || !hasNumbers || left < freeText || end > bbox.left + bbox.width) continue;
    context.fillStyle = colour("muted");
    context.fillText(label, left + 4 * ratio, bbox.top + 3 * ratio);
    freeText = end + 8 * ratio;
  }
}

/** Says how high a stack goes whose longest columns are cut off. */
function drawCut(chart) {
  const most = chart.data[1].reduce((x, y) => Math.max(x, y), 0);
  if (most <= chart.scales.y.max) return;
  const { ctx: context, bbox } = chart;
  const ratio = window.devicePixelRatio || 1;
  Object.assign(context, { textAlign: "right", fillStyle: colour("fg") });
  const place = [bbox.left + bbox.width - 4 * ratio, bbox.top + 3 * ratio];
  context.fillText(`longest columns cut off, up to ${seconds(most)}`, ...place);
}

function drawOutliers(chart, events) {
  const kind = events.kinds.indexOf("outlier");
  const { ctx: context, bbox } = chart;
  const ratio = window.devicePixelRatio || 1;
  context.fillStyle = colour("bad");
  for (let i = 0; i < events.start_s.length; i++) {
    if (events.kind[i] !== kind) continue;
    const x = chart.valToPos(events.start_s[i] + events.seconds[i] / 2, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    context.beginPath();
    context.arc(x, chart.valToPos(events.seconds[i], "y", true), 2.2 * ratio, 0, 2 * Math.PI);
    context.fill();
  }
}

/** What a chart shows in words: the range of each line. */
function chartWords(spec, data) {
  const format = FORMATS[spec.unit];
  const ranges = [];
  for (const [i, line] of spec.lines.entries()) {
    const values = line.isHidden?.() ? [] : [...data[0].keys()].map((at) => valueAt(spec, data, i, at)).filter(isKnown);
    if (values.length === 0) continue;
    const [least, most] = [Math.min, Math.max].map((pick) => values.reduce((x, y) => pick(x, y)));
    ranges.push(`${line.name} ${format(least)} to ${format(most)}`);
  }
  const more = ranges.length > 8 ? `; and ${ranges.length - 8} more` : "";
  return `${spec.title} over time: ${ranges.slice(0, 8).join("; ") || "nothing in this window"}${more}.`;
}

/** Names of a chart's lines and shades, with values where the cursor is; returns what colours them. */
function addLegend(caption, spec, shades, view, dataNow) {
  const legend = element("span", { class: "legend" });
  const paints = [];
  const add = (line, value = "") => {
    const [mark, name] = [swatch(), element("span")];
    const entry = element("span", { class: "entry" }, mark, name, value);
    legend.append(entry);
    paints.push(() => {
      mark.style.background = line.colour();
      name.textContent = line.name;
      entry.hidden = line.isHidden?.() ?? false;
    });
  };
  const values = spec.lines.map(() => element("span", { class: "value" }));
  const order = [...spec.lines.keys()];
  if (spec.isStack) order.reverse();
  for (const i of order) add(spec.lines[i], values[i]);
  for (const [, name, of] of shades) add({ name, colour: () => faded(colour(of), 0.3) });
  caption.append(legend);
  view.cursorListeners.push((time) => {
    const data = dataNow();
    const times = data[0];
    const isInside = time !== null && time >= times[0] && time <= times[times.length - 1];
    const at = spec.isStepped ? lowerBound(times, time, true) - 1 : nearest(times, time);
    for (const [i, value] of values.entries()) {
      const known = isInside ? valueAt(spec, data, i, at) : null;
      const { from } = spec.lines[i];
      const least = from === undefined || !isKnown(known) ? "" : `${FORMATS[spec.unit](valueAt(spec, data, from, at))} to `;
      value.textContent = isKnown(known) ? ` ${least}${FORMATS[spec.unit](known)}` : "";
      value.classList.toggle("range", from !== undefined);
    }
  });
  return () => paints.forEach((paint) => paint());
}

function axis(more) {
  const grid = { stroke: () => colour("line"), width: 1 };
  return { stroke: () => colour("muted"), font: AXIS_FONT, grid, ticks: { show: false }, ...more };
}

function plotOptions(spec, view, isLog, width, drawClear, draw) {
  const series = spec.lines.map((line) => ({
    stroke: line.width === 0 ? undefined : line.colour,
    fill: line.opacity === undefined ? undefined : () => faded(line.colour(), line.opacity),
    width: line.width,
    paths: spec.isStepped ? uPlot.paths.stepped({ align: 1, alignGaps: 1 }) : uPlot.paths.linear(),
    points: { show: false },
  }));
  const times = axis({
    size: 24,
    space: TICK_SPACE,
    incrs: CLOCK_STEPS,
    values: (_, splits, __, ___, step) => clocks(splits, step),
  });
  const figures = axis({
    size: GUTTER,
    space: 24,
    incrs: spec.unit.startsWith("bytes") ? BINARY_STEPS : DECIMAL_STEPS,
    values: tickWords(spec.unit, isLog),
    ...(isLog ? { splits: logTicks, filter: (_, splits) => splits } : {}),
  });
  return {
    width,
    height: spec.height,
    padding: [8, RIGHT, 0, 0],
    cursor: { show: false },
    legend: { show: false },
    select: { show: false },
    series: [{}, ...series],
    bands: (spec.bands ?? []).map(([upper, lower, fill]) => ({ series: [upper + 1, lower + 1], fill })),
    scales: {
      x: { time: false, range: () => [view.from, view.to] },
      y: { distr: isLog ? 3 : 1, range: verticalRange(spec, isLog) },
    },
    axes: [times, figures],
    hooks: { drawClear, draw },
  };
}

function addTimeChart(host, spec, view, charts) {
  const caption = element("figcaption", {}, element("h3", {}, spec.title));
  if (spec.note) caption.append(element("span", { class: "note" }, spec.note));
  const plot = element("div", { class: "plot" });
  host.append(element("figure", { class: "chart", "data-chart": spec.id }, caption, plot));
  const shades = spec.hasMarks ? SHADES.filter(([kind, words]) => words && charts.spans.some((span) => span.kind === kind)) : [];
  let chart = null;
  const paintLegend = addLegend(caption, spec, shades, view, () => chart.data);
  const drawBelow = (drawn) => drawSpans(drawn, charts.spans, spec.hasMarks);
  const drawAbove = (drawn) => {
    if (spec.hasMarks) drawOutliers(drawn, charts.events);
    if (spec.isStack) drawCut(drawn);
  };
  const build = (isLog) => {
    if (chart !== null) {
      view.detach(chart.over);
      chart.destroy();
    }
    chart = new uPlot(plotOptions(spec, view, isLog, plot.clientWidth, [drawBelow], [drawAbove]), spec.values(), plot);
    chart.ctx.canvas.setAttribute("role", "img");
    view.attach(chart.over);
  };
  const draw = () => {
    if (chart.width !== plot.clientWidth) chart.setSize({ width: plot.clientWidth, height: spec.height });
    chart.setData(spec.values());
    chart.ctx.canvas.setAttribute("aria-label", chartWords(spec, chart.data));
    paintLegend();
  };
  build(spec.hasLog);
  if (spec.hasLog) {
    const button = element("button", { type: "button", "aria-pressed": "true", "data-scale": "" }, "Log scale");
    button.addEventListener("click", () => {
      const isLog = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", isLog);
      build(isLog);
      draw();
    });
    caption.append(button);
  }
  view.listeners.push(draw);
  keepDrawn(draw);
}

/** Draws all charts over time: of steps, and of the machine what was observed. */
function drawTimeCharts(charts, view, whole) {
  const host = document.getElementById("time-charts");
  const { steps, machine } = charts;
  if (host === null || (steps === null && machine === null)) return;
  addControls(host, view, whole);
  let kept = { key: "", columns: null };
  const columns = () => {
    const width = Math.max(COLUMN, host.clientWidth - GUTTER - RIGHT);
    const key = `${view.from} ${view.to} ${width}`;
    if (kept.key !== key) kept = { key, columns: columnsOf(steps, charts.spans, view, width) };
    return kept.columns;
  };
  const specs = steps === null ? [] : [stepTimeSpec, partsSpec, waitSpec].map((make) => make(charts, columns));
  if (machine !== null) specs.push(...PANELS.map((panel) => machineSpec(machine, panel)));
  for (const spec of specs) {
    if (spec !== null) addTimeChart(host, spec, view, charts);
  }
}
