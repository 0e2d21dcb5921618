// The stretch of the run that all charts show, moved by dragging, key or button.

// A drag over fewer CSS pixels is a click.
const LEAST_DRAG = 5;

/** Index of the first value >= `value` of an ascending array; > `value` where `isAfter`. */
function lowerBound(array, value, isAfter = false) {
  let low = 0;
  let high = array.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (array[middle] < value || (isAfter && array[middle] === value)) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearest(array, value) {
  const after = Math.min(lowerBound(array, value), array.length - 1);
  return after > 0 && value - array[after - 1] < array[after] - value ? after - 1 : after;
}

class TimeWindow {
  constructor(charts) {
    this.steps = charts.steps;
    this.first = charts.start_s;
    this.last = charts.start_s + charts.wall_s;
    this.from = this.first;
    this.to = this.last;
    this.surfaces = [];
    this.cursorListeners = [];
    this.listeners = [];
    this.frame = null;
  }

  get isWhole() {
    return this.from <= this.first && this.to >= this.last;
  }

  /** Step bins [first, last) that lie in the window. */
  bins() {
    if (this.steps === null) return [0, 0];
    const first = lowerBound(this.steps.start_s, this.from);
    return [first, Math.max(first, lowerBound(this.steps.end_s, this.to, true))];
  }

  /** Moves both ends to the nearest ends of bins; what lies outside of all steps stays. */
  snapped(from, to) {
    if (this.steps === null) return [from, to];
    const { start_s, end_s } = this.steps;
    const [beginning, end] = [start_s[0], end_s[end_s.length - 1]];
    if (to <= beginning || from >= end) return [from, to];
    let first = nearest(start_s, from);
    let last = nearest(end_s, to);
    if (last < first) first = last = Math.max(0, lowerBound(start_s, (from + to) / 2, true) - 1);
    return [from < beginning ? from : start_s[first], to > end ? to : end_s[last]];
  }

  /** Shows what lies between two times; returns whether that is another window. */
  set(from, to) {
    const ends = [Math.max(this.first, from), Math.min(this.last, to)];
    const [first, last] = this.snapped(...ends);
    if (!(last > first) || (first === this.from && last === this.to)) return false;
    this.from = first;
    this.to = last;
    this.point(null);
    for (const listen of this.listeners) listen();
    return true;
  }

  reset() {
    this.set(this.first, this.last);
  }

  zoom(factor) {
    const middle = (this.from + this.to) / 2;
    const half = ((this.to - this.from) / 2) * factor;
    this.set(middle - half, middle + half);
  }

  /** Moves by a quarter of the window, or by more where bins are wider; -1 is to the left. */
  move(direction) {
    const width = this.to - this.from;
    for (let part = 0.25; part <= 16; part *= 2) {
      const by = Math.max(this.first - this.from, Math.min(this.last - this.to, direction * part * width));
      if (this.set(this.from + by, this.to + by)) return;
    }
  }

  timeAt(share) {
    return this.from + share * (this.to - this.from);
  }

  /** Lets a plot area, whose width shows the window, be dragged over. */
  attach(area) {
    const cursor = element("div", { class: "time-cursor", hidden: "" });
    const selection = element("div", { class: "time-selection", hidden: "" });
    area.append(cursor, selection);
    area.style.touchAction = "pan-y";
    this.surfaces.push({ area, cursor, selection });
    let start = null;
    const shareAt = (event) => {
      const box = area.getBoundingClientRect();
      return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    };
    const drop = () => {
      start = null;
      this.select(null);
    };
    area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      start = shareAt(event);
      area.setPointerCapture(event.pointerId);
    });
    area.addEventListener("pointermove", (event) => {
      this.point(shareAt(event));
      if (start !== null) this.select([start, shareAt(event)].sort((a, b) => a - b));
    });
    area.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const [from, to] = [start, shareAt(event)].sort((a, b) => a - b);
      drop();
      if ((to - from) * area.clientWidth >= LEAST_DRAG) this.set(this.timeAt(from), this.timeAt(to));
    });
    area.addEventListener("pointercancel", drop);
    area.addEventListener("pointerleave", () => this.point(null));
    area.addEventListener("dblclick", () => this.reset());
  }

  detach(area) {
    this.surfaces = this.surfaces.filter((surface) => surface.area !== area);
  }

  /** Shows the stretch being dragged over, in shares of the width; null hides it. */
  select(shares) {
    for (const { selection } of this.surfaces) {
      selection.hidden = shares === null;
      if (shares === null) continue;
      selection.style.left = `${shares[0] * 100}%`;
      selection.style.width = `${(shares[1] - shares[0]) * 100}%`;
    }
  }

  /** Shows one cursor over all charts at a share of their width; null hides it. */
  point(share) {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      for (const { cursor } of this.surfaces) {
        cursor.hidden = share === null;
        cursor.style.left = `${share * 100}%`;
      }
      for (const listen of this.cursorListeners) listen(share === null ? null : this.timeAt(share));
    });
  }
}

/** Buttons and keys that move the window; the region takes the keys. */
function addControls(region, view, whole) {
  const controls = [
    ["in", "+", "Zoom in", () => view.zoom(0.5)],
    ["out", "−", "Zoom out", () => view.zoom(2)],
    ["left", "←", "Earlier", () => view.move(-1)],
    ["right", "→", "Later", () => view.move(1)],
    ["reset", "Reset", `Show ${whole}`, () => view.reset()],
  ];
  const keys = { "+": 0, "=": 0, "-": 1, ArrowLeft: 2, ArrowRight: 3, Escape: 4 };
  const bar = element("div", { class: "time-controls", role: "group", "aria-label": "Window" });
  for (const [id, text, label, act] of controls) {
    const button = element("button", { type: "button", "data-window": id, "aria-label": label, title: label }, text);
    button.addEventListener("click", act);
    bar.append(button);
  }
  bar.append(
    element("span", { class: "hint" }, "Drag over a chart to look into a stretch of the run."),
    element("a", { class: "to-table", href: "#window-table" }, "What happened here"),
  );
  region.tabIndex = 0;
  region.setAttribute("role", "group");
  const label = `Charts over time. Arrow keys move the window, plus and minus zoom, Escape shows ${whole}.`;
  region.setAttribute("aria-label", label);
  region.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    controls[keys[event.key]][3]();
  });
  region.prepend(bar);
}
