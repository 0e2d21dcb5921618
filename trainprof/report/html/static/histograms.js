// Histograms of step time and of utilisation, in SVG: their colours follow the theme by CSS.

const BARS_HEIGHT = 110;
const BARS_WIDTH = 320;

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

function addHistogram(host, { name, unit, edges, counts, is_log }) {
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
  const picture = shape("svg", {
    viewBox: `0 0 ${BARS_WIDTH} ${BARS_HEIGHT + 18}`,
    role: "img",
    tabindex: 0,
    "aria-label": label,
    class: "bars",
  });
  const width = BARS_WIDTH / counts.length;
  for (const [i, value] of counts.entries()) {
    // What is there is visible, however small compared with the others.
    const height = value > 0 ? Math.max(2, (value / most) * BARS_HEIGHT) : 0;
    picture.append(shape("rect", { x: i * width, y: BARS_HEIGHT - height, width: Math.max(0.5, width - 1), height }));
  }
  picture.append(shape("line", { x1: 0, x2: BARS_WIDTH, y1: BARS_HEIGHT, y2: BARS_HEIGHT }));
  for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    const edge = Math.round(share * counts.length);
    const place = { x: edge * width, y: BARS_HEIGHT + 14, "text-anchor": anchor };
    picture.append(shape("text", place, format(edges[edge])));
  }
  const indexAt = (event) => {
    const box = picture.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / box.width) * counts.length);
    return index >= 0 && index < counts.length ? index : null;
  };
  addReadout(picture, counts.length, indexAt, wordsOf);
  const note = `${unit === "s" ? "steps" : "seconds of the run"}${is_log ? ", logarithmic axis" : ""}`;
  const caption = element("figcaption", {}, element("h3", {}, title), element("span", { class: "note" }, note));
  host.append(element("figure", { class: "histogram", "data-chart": `histogram ${name}` }, caption, picture));
}

function drawHistograms(charts) {
  const host = document.getElementById("histograms");
  if (host === null) return;
  for (const histogram of charts.histograms) addHistogram(host, histogram);
}
