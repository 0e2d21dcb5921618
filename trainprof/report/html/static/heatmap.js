// Rows of bins on the window's axis, and the first picture of them: load of cores and GPUs.

const UNKNOWN_PERCENT = 255;
const TIMES_HEIGHT = 18;

/** Mean of the known percents of a row in bins [first, last); null where none is known. */
function knownMean(row, [first, last]) {
  let sum = 0;
  let n = 0;
  for (let i = first; i < last; i++) {
    if (row[i] === UNKNOWN_PERCENT) continue;
    sum += row[i];
    n++;
  }
  return n > 0 ? sum / n : null;
}

/** Writes the times of the window below rows, as below the charts. */
function drawTimes(context, view, width, y) {
  const least = ((view.to - view.from) * TICK_SPACE) / width;
  const step = CLOCK_STEPS.find((each) => each >= least) ?? CLOCK_STEPS[CLOCK_STEPS.length - 1];
  const times = [];
  for (let i = Math.ceil(view.from / step); i * step <= view.to; i++) times.push(i * step);
  context.textAlign = "center";
  for (const [i, words] of clocks(times, step).entries()) {
    context.fillText(words, ((times[i] - view.from) / (view.to - view.from)) * width, y);
  }
}

/**
 * Draws rows of bins, and keeps them drawn.
 *
 * `picture` has id, title, rowHeight, names, bins(from, to) -> [first, last), words(row, bins),
 * label(bins), and paint(context, columns) whose context begins at the plot area and whose columns
 * are the bins under each CSS pixel.
 */
function drawRows(host, view, picture) {
  const { names, rowHeight, words } = picture;
  const canvas = element("canvas", { role: "img", tabindex: "0" });
  const area = element("div", { class: "time-area" });
  const rows = element("div", { class: "time-rows" }, canvas, area);
  area.style.left = `${GUTTER}px`;
  area.style.right = `${RIGHT}px`;
  area.style.bottom = `${TIMES_HEIGHT}px`;
  const caption = element("figcaption", {}, element("h3", {}, picture.title), picture.legend);
  host.append(element("figure", { class: "chart", "data-chart": picture.id }, caption, rows));
  view.attach(area);
  const shown = () => picture.bins(view.from, view.to);
  addReadout(canvas, names.length, () => null, (row) => words(row, shown()));
  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    const row = Math.max(0, Math.min(names.length - 1, Math.floor((event.clientY - box.top) / rowHeight)));
    const time = view.timeAt((event.clientX - box.left) / box.width);
    const text = `${clock(time, (view.to - view.from) / 1000)}\n${words(row, picture.bins(time, time))}`;
    showTip(text, event.clientX, event.clientY);
  });
  area.addEventListener("pointerleave", hideTip);
  const draw = () => {
    const context = sizedContext(canvas, rows.clientWidth, names.length * rowHeight + TIMES_HEIGHT);
    Object.assign(context, { font: AXIS_FONT, textBaseline: "middle", textAlign: "right", fillStyle: colour("muted") });
    const every = Math.ceil(12 / rowHeight);
    for (let i = 0; i < names.length; i += every) {
      context.fillText(names[i], GUTTER - 6, Math.max(6, (i + 0.5) * rowHeight), GUTTER - 8);
    }
    context.translate(GUTTER, 0);
    const width = Math.max(1, Math.floor(rows.clientWidth - GUTTER - RIGHT));
    drawTimes(context, view, width, names.length * rowHeight + TIMES_HEIGHT / 2 + 2);
    const timeAt = (x) => view.timeAt(x / width);
    picture.paint(context, Array.from({ length: width }, (_, x) => picture.bins(timeAt(x), timeAt(x + 1))));
    canvas.setAttribute("aria-label", `${picture.title} over time: ${picture.label(shown())}.`);
  };
  view.listeners.push(draw);
  keepDrawn(draw);
}

/** Colours of 0 to 100 percent, [red, green, blue] each. */
function heatColours() {
  const mixed = (from, to, share) => from.map((value, i) => Math.round(value + (to[i] - value) * share));
  const [card, accent, fg] = ["card", "accent", "fg"].map((name) => [...channels(colour(name))]);
  const [low, high] = [mixed(card, accent, 0.08), mixed(accent, fg, 0.55)];
  return Array.from({ length: 101 }, (_, value) =>
    value < 60 ? mixed(low, accent, value / 60) : mixed(accent, high, (value - 60) / 40),
  );
}

/** An image of one pixel per row and column. */
function heatImage(rows, columns, colours) {
  const image = new ImageData(columns.length, rows.length);
  for (const [y, row] of rows.entries()) {
    for (const [x, bins] of columns.entries()) {
      const mean = knownMean(row, bins);
      if (mean !== null) image.data.set([...colours[Math.round(mean)], 255], 4 * (y * columns.length + x));
    }
  }
  const canvas = element("canvas", { width: columns.length, height: rows.length });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function drawHeatmap(charts, view) {
  const host = document.getElementById("heatmap");
  const names = Object.keys(charts.machine?.cores ?? {});
  if (host === null || names.length === 0) return;
  const { time_s, cores } = charts.machine;
  const rows = Object.values(cores);
  const rowHeight = Math.max(7, Math.min(20, Math.floor(360 / names.length)));
  const bar = element("canvas", { role: "img", "aria-label": "Colours from 0 to 100 percent" });
  const load = (mean) => (mean === null ? NOT_MEASURED : `${fixed(mean, 0)} %`);
  drawRows(host, view, {
    id: "heatmap",
    title: "Load of cores and GPUs",
    legend: element(
      "span",
      { class: "legend" },
      element("span", { class: "entry" }, "0 % ", bar, " 100 %"),
      "blank where not measured",
    ),
    names,
    rowHeight,
    bins: (from, to) => [nearest(time_s, from), nearest(time_s, to) + 1],
    words: (row, bins) => `${names[row]}: ${load(knownMean(rows[row], bins))}`,
    label: (bins) => {
      const means = rows.map((row) => knownMean(row, bins)).filter((mean) => mean !== null);
      const range = `${load(Math.min(...means))} to ${load(Math.max(...means))}`;
      return means.length === 0 ? NOT_MEASURED : `${range}, on average ${load(sumOf(means) / means.length)}`;
    },
    paint: (context, columns) => {
      const colours = heatColours();
      context.imageSmoothingEnabled = false;
      context.drawImage(heatImage(rows, columns, colours), 0, 0, columns.length, rows.length * rowHeight);
      const scale = sizedContext(bar, 101, 10);
      for (const [value, rgb] of colours.entries()) {
        scale.fillStyle = `rgb(${rgb.join(" ")})`;
        scale.fillRect(value, 0, 1, 10);
      }
    },
  });
}
