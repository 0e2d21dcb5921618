// Histograms of step time and of utilisation, in SVG: their colours follow the theme by CSS.

const BARS_HEIGHT = 120;
// Above the bars, for the names of marks.
const MARKS_HEIGHT = 28;

function shape(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Shows words of a part of a picture: under the pointer, or chosen by arrow keys. */
function addReadout(target, length, indexAt, wordsOf) {
  let index = 0;
  const showChosen = () => {
    const box = target.getBoundingClientRect();
    showTip(wordsOf(index), box.left, box.top);
  };
  target.addEventListener("pointermove", (event) => {
    const at = indexAt(event);
    if (at === null) hideTip();
    else showTip(wordsOf(at), event.clientX, event.clientY);
  });
  target.addEventListener("pointerleave", hideTip);
  target.addEventListener("blur", hideTip);
  target.addEventListener("focus", () => target.matches(":focus-visible") && showChosen());
  target.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    index = Math.max(0, Math.min(length - 1, index + by));
    showChosen();
  });
}

/** Draws a histogram, with `marks`, [name, value] each. */
function addHistogram(host, { name, unit, edges, counts, is_log }, marks) {
  const [format, total] = [FORMATS[unit], sumOf(counts)];
  const title = unit === "%" ? `Utilisation of ${name}` : `${name[0].toUpperCase()}${name.slice(1)}`;
  const most = counts.reduce((x, y) => Math.max(x, y));
  const mode = counts.indexOf(most);
  const wordsOf = (i) => {
    const height = unit === "s" ? counted(counts[i], "step") : seconds(counts[i]);
    // The first bin of a logarithmic axis includes what is shorter.
    const from = is_log && i === 0 ? "up to" : `${format(edges[i])} to`;
    return `${from} ${format(edges[i + 1])}: ${height} (${percent(counts[i] / total)})`;
  };
  const range = `${format(edges[0])} to ${format(edges[counts.length])}`;
  const label = `${title}, histogram over ${range}. Most often ${wordsOf(mode)}.`;
  const bottom = MARKS_HEIGHT + BARS_HEIGHT;
  const attributes = { height: bottom + 18, role: "img", tabindex: 0, "aria-label": label, class: "bars" };
  const picture = shape("svg", attributes);
  const placeOf = (value) => {
    const bin = Math.max(0, Math.min(counts.length, lowerBound(edges, value, true)) - 1);
    return bin + Math.max(0, Math.min(1, (value - edges[bin]) / (edges[bin + 1] - edges[bin])));
  };
  const draw = () => {
    const right = picture.getBoundingClientRect().width;
    const width = (right - GUTTER) / counts.length;
    const bars = [...counts].map((value, i) => {
      // What is there is visible, however small compared with the others.
      const height = value > 0 ? Math.max(2, (value / most) * BARS_HEIGHT) : 0;
      return shape("rect", { x: GUTTER + i * width, y: bottom - height, width: Math.max(0.5, width - 1), height });
    });
    const lines = [0, MARKS_HEIGHT - bottom].map((y) => ({ x1: GUTTER, x2: right, y1: bottom + y, y2: bottom + y }));
    picture.replaceChildren(...lines.map((line) => shape("line", line)), ...bars);
    const write = (text, x, y, anchor) => picture.append(shape("text", { x, y, "text-anchor": anchor }, text));
    write("0", GUTTER - 6, bottom + 4, "end");
    write(unit === "s" ? count(most) : seconds(most), GUTTER - 6, MARKS_HEIGHT + 4, "end");
    for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
      const edge = Math.round(share * counts.length);
      write(format(edges[edge]), GUTTER + edge * width, bottom + 14, anchor);
    }
    for (const [i, [words, value]] of marks.entries()) {
      const [x, y] = [GUTTER + placeOf(value) * width, 11 + 13 * i];
      picture.append(shape("line", { x1: x, x2: x, y1: y - 9, y2: bottom, class: "mark" }));
      write(words, x > right - 60 ? x - 4 : x + 4, y, x > right - 60 ? "end" : "start");
    }
  };
  const indexAt = (event) => {
    const box = picture.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left - GUTTER) / (box.width - GUTTER)) * counts.length);
    return index >= 0 && index < counts.length ? index : null;
  };
  addReadout(picture, counts.length, indexAt, wordsOf);
  const note = `${unit === "s" ? "steps" : "seconds of the run"}${is_log ? "; times on a logarithmic axis" : ""}`;
  const caption = element("figcaption", {}, element("h3", {}, title), element("span", { class: "note" }, note));
  host.append(element("figure", { class: "histogram", "data-chart": `histogram ${name}` }, caption, picture));
  keepDrawn(draw);
}

function drawHistograms(charts) {
  const host = document.getElementById("histograms");
  if (host === null) return;
  const { steps } = charts;
  const times = steps === null ? [] : stepTimes(steps, 0, steps.count.length);
  for (const histogram of charts.histograms) {
    const isOfSteps = histogram.unit === "s" && times.length > 0;
    addHistogram(host, histogram, isOfSteps ? [["median", quantile(times, 0.5)], ["p95", quantile(times, 0.95)]] : []);
  }
}
