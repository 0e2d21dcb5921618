// The flame graph of the stack samples, which analysis/charts/stack_samples.py adds up.

const [FLAME_ROW, FLAME_MOST_FUNCTIONS] = [20, 20];
const FLAME_TIMES = { self: "Self time", total: "Total time", late: "Sampled late" };
const FLAME_THREADS = { training: "Training thread", workers: "Loader workers", main: "Main thread" };
const FLAME_PHASES = { loop: (key) => key !== "startup" && key !== "shutdown", all: () => true };
// Frames without a place, which stand for others.
const FLAME_NOTES = {
  "sampled late": "These samples came late: their time may be of lines before this.",
  "line unknown": "These samples came late: they met another phase.",
  "...": "Of a deep stack both ends are recorded: calls between them may be missing.",
  "rarer calls": "Calls below this frame that few samples met.",
  "no line of your code": "Code of libraries, or a stack that was not recorded.",
};

function flameNode(frame, parent) {
  const depth = parent ? parent.depth + 1 : 0;
  return { frame, parent, depth, self: 0, total: 0, late: 0, children: null, sorted: null };
}

/** Adds up a thread's stacks, which come in order of frames, in a tree; its root counts samples. */
function flameTree(stacks, thread, isShown, frames) {
  const root = { ...flameNode(-1, null), samples: 0 };
  for (const [name, key, samples, stack, spent] of stacks) {
    if (name !== thread || !isShown(key)) continue;
    let node = root;
    root.total += spent;
    root.samples += samples;
    for (const frame of stack) {
      let child = node.children?.at(-1);
      if (child?.frame !== frame) {
        child = flameNode(frame, node);
        (node.children ??= []).push(child);
      }
      child.total += spent;
      node = child;
    }
    node.self += spent;
    if (frames[node.frame]?.isLate) for (let at = node; at; at = at.parent) at.late += spent;
  }
  return root;
}

/** Returns a node's children, the longest first. */
function flameChildren(node) {
  return (node.sorted ??= node.children?.toSorted((a, b) => b.total - a.total) ?? []);
}

/** Adds up time by function below a node, late samples apart; recursive calls count once. */
function flameFunctions(top, frames) {
  const [rows, spent] = [[], []];
  const visit = (node) => {
    const { id, name, place } = frames[node.frame] ?? {};
    const row = (rows[id ?? 0] ??= { name, place, most: 0, self: 0, total: 0, late: 0, open: 0 });
    row.self += node.self;
    spent[node.frame] = (spent[node.frame] ?? 0) + node.self + 1e-6 * node.total;
    if (spent[node.frame] > row.most) [row.most, row.place] = [spent[node.frame], place];
    if (!row.open++) {
      row.total += node.total - node.late;
      row.late += node.late;
    }
    for (const child of node.children ?? []) visit(child);
    row.open--;
  };
  visit(top);
  return rows.filter((row) => row.place);
}

/** Reads the payload's frames; those of a function have one `id`, from 1 on. */
function flameFrames(pairs) {
  const ids = new Map();
  return pairs.map(([name, place]) => {
    const [, file, line] = /^(.*):(\d+)$/s.exec(place) ?? [null, place, null];
    const key = `${name}\n${file}`;
    if (!ids.has(key)) ids.set(key, ids.size + 1);
    const hash = [...file].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 65521, 0);
    const module = line ? file.replace(/^.*[\\/]/s, "") : file;
    const hue = line && 1 + Math.round((hash * 137.508) % 359);
    const short = `${name === "<module>" ? module : name}${line ? `:${line}` : ""}`;
    const text = `${name}\n${place}`.toLowerCase();
    const isLate = place === "" && ["sampled late", "line unknown"].includes(name);
    return { name, place, id: ids.get(key), hue, text, isLate, labels: [`${name}  ${place}`, short] };
  });
}

class FlameGraph {
  constructor(charts, place) {
    this.stacks = charts.stacks.stacks;
    this.frames = flameFrames(charts.stacks.frames);
    this.labels = charts.labels;
    place.replaceChildren(...this.controls(), ...this.graph(), this.table());
    this.showThread();
    keepDrawn(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.tree); // it may be hidden at first
  }

  controls() {
    this.thread = element("select");
    this.phase = element("select");
    this.search = element("input", { type: "search", placeholder: "function or file" });
    this.found = element("span", { role: "status" });
    this.path = element("nav", { class: "flame-path", "aria-label": "Zoomed to" });
    const threads = new Set(this.stacks.map(([thread]) => thread));
    for (const value of threads) this.thread.append(element("option", { value }, FLAME_THREADS[value] ?? value));
    if (threads.has("training")) this.thread.value = "training";
    this.thread.addEventListener("change", () => this.showThread());
    this.phase.addEventListener("change", () => this.showPhase());
    this.search.addEventListener("input", () => this.find());
    const controls = Object.entries({ Thread: this.thread, Phase: this.phase, Search: this.search });
    const parts = controls.map(([text, control]) => element("label", {}, `${text} `, control));
    return [element("div", { class: "flame-controls" }, ...parts, this.path, this.found)];
  }

  graph() {
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.item = element("span", { role: "treeitem", id: "flame-active", class: "flame-active" });
    const attributes = { role: "tree", tabindex: "0", class: "flame-tree", "aria-label": "Flame graph" };
    this.tree = element("div", { ...attributes, "aria-activedescendant": this.item.id }, this.canvas, this.item);
    this.tree.addEventListener("keydown", (event) => this.onKey(event));
    for (const change of ["focus", "blur"]) this.tree.addEventListener(change, () => this.draw());
    this.canvas.addEventListener("mousemove", (event) => {
      const node = this.nodeAt(event);
      if (node) showTip(this.words(node).join("\n"), event.clientX, event.clientY);
      else hideTip();
    });
    this.canvas.addEventListener("mouseleave", hideTip);
    this.canvas.addEventListener("click", (event) => this.zoom(this.nodeAt(event) ?? this.top));
    this.details = element("div", { class: "flame-details" });
    this.note = element("p", { class: "note" });
    return [this.tree, this.details, this.note];
  }

  table() {
    this.rows = element("tbody");
    this.heads = Object.entries(FLAME_TIMES).map(([key, text]) => {
      const button = element("button", { type: "button" }, text);
      button.addEventListener("click", () => this.showTable(key));
      return [key, element("th", { scope: "col" }, button)];
    });
    const [name, place] = ["Function", "Most of it at"].map((text) => element("th", { scope: "col" }, text));
    const head = element("tr", {}, name, ...this.heads.map(([, th]) => th), place);
    this.heads[2][1].title = "Samples that came late: their time may be of lines before.";
    const attributes = { class: "flame-table", tabindex: "0", role: "region", "aria-label": "Functions" };
    return element("div", attributes, element("table", {}, element("thead", {}, head), this.rows));
  }

  showThread() {
    const totals = {};
    for (const [thread, phase, , , spent] of this.stacks) {
      if (thread === this.thread.value) totals[phase] = (totals[phase] ?? 0) + spent;
    }
    const phases = Object.keys(totals).sort((a, b) => totals[b] - totals[a]);
    const hasBoth = phases.some(FLAME_PHASES.loop) && !phases.every(FLAME_PHASES.loop);
    const choices = { ...(hasBoth ? { loop: "all but start-up and exit" } : {}), all: "all" };
    for (const phase of phases) choices[phase] = `${this.labels[phase] ?? phase}, ${seconds(totals[phase])}`;
    this.phase.replaceChildren(...Object.entries(choices).map(([value, text]) => element("option", { value }, text)));
    this.showPhase();
  }

  showPhase() {
    const isShown = FLAME_PHASES[this.phase.value] ?? ((key) => key === this.phase.value);
    this.root = flameTree(this.stacks, this.thread.value, isShown, this.frames);
    const { late, samples, total } = this.root;
    const notes = [`Width is time, estimated from ${counted(samples, "stack sample")}.`];
    if (late) notes.push(`${percent(late / total)} came late (dashed): that time may be of earlier lines.`);
    this.note.textContent = `${notes.join(" ")} Time in torch counts for the line that calls it. Libraries are grey.`;
    this.zoom(this.root);
  }

  zoom(node) {
    this.top = node;
    const path = [];
    for (let at = node; at; at = at.parent) {
      const button = element("button", { type: "button" }, this.frames[at.frame]?.name ?? "Reset");
      button.addEventListener("click", () => this.zoom(at));
      button.disabled = at === node;
      path.unshift(button);
    }
    this.path.replaceChildren(...path);
    hideTip();
    this.activate(node);
    this.find();
    this.showTable();
  }

  /** Returns name, place, times and note of a frame, those that it has. */
  words(node) {
    const frame = this.frames[node.frame] ?? { name: this.thread.selectedOptions[0].text };
    const whole = node.depth < this.top.depth ? this.root.total : this.top.total;
    const time = (kind) => `${FLAME_TIMES[kind]} ${seconds(node[kind])} (${percent(node[kind] / whole)})`;
    const note = frame.place === "" ? FLAME_NOTES[frame.name] : "";
    const late = node.late && !note ? time("late") : "";
    return [frame.name, frame.place, time("total"), time("self"), late, note].filter(Boolean);
  }

  /** Makes a frame the one that keys move from, and that is described below the graph. */
  activate(node) {
    this.active = node;
    const words = this.words(node);
    const parts = words.map((text, at) => element(at ? "span" : "strong", {}, text));
    const copy = element("button", { type: "button" }, "Copy");
    copy.addEventListener("click", () => {
      getSelection().selectAllChildren(parts[1]); // a page of file:// may have no clipboard
      navigator.clipboard?.writeText(words[1]).then(() => (copy.textContent = "Copied"), () => {});
    });
    if (this.frames[node.frame]?.place) parts.splice(2, 0, copy);
    this.details.replaceChildren(...parts);
    const siblings = node.parent ? flameChildren(node.parent) : [node];
    const place = { ariaSetSize: siblings.length, ariaPosInSet: siblings.indexOf(node) + 1 };
    Object.assign(this.item, { ...place, ariaLevel: node.depth + 1, textContent: words.join(", ") });
    this.draw();
  }

  onKey(event) {
    const siblings = this.active.parent ? flameChildren(this.active.parent) : [];
    const at = siblings.indexOf(this.active);
    const next = { ArrowRight: siblings[at + 1], ArrowLeft: siblings[at - 1], Home: this.root };
    Object.assign(next, { ArrowDown: flameChildren(this.active)[0], ArrowUp: this.active.parent });
    if (event.key === "Escape") this.zoom(this.root);
    else if (event.key === "Enter" || event.key === " ") this.zoom(this.active);
    else if (!(event.key in next)) return;
    else if (next[event.key]) this.activate(next[event.key]);
    event.preventDefault();
  }

  find() {
    const text = this.search.value.trim().toLowerCase();
    this.matches = text ? this.frames.map((frame) => frame.text.includes(text)) : null;
    const below = (node) => (node.children ?? []).reduce((sum, child) => sum + met(child), 0);
    const met = (node) => (this.matches[node.frame] ? node.total : below(node));
    this.found.textContent = text ? `${percent(met(this.top) / this.top.total)} of the samples match` : "";
    this.draw();
  }

  draw() {
    const width = this.tree.clientWidth;
    if (!width) return;
    this.boxes = [];
    for (let at = this.top.parent; at; at = at.parent) this.boxes.push({ node: at, x: 0, wide: width });
    const place = (node, x, wide) => {
      this.boxes.push({ node, x, wide });
      for (const child of flameChildren(node)) {
        const part = (wide * child.total) / node.total;
        if (part < 1) break;
        place(child, x, part);
        x += part;
      }
    };
    place(this.top, 0, width);
    const rows = 1 + Math.max(...this.boxes.map((box) => box.node.depth));
    const context = sizedContext(this.canvas, width, rows * FLAME_ROW);
    const font = "12px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
    Object.assign(context, { font, textBaseline: "middle" });
    for (const box of this.boxes) this.drawBox(context, box);
  }

  drawBox(context, { node, x, wide }) {
    const frame = this.frames[node.frame];
    const [y, isMatch] = [node.depth * FLAME_ROW, this.matches?.[node.frame]];
    context.globalAlpha = node.depth < this.top.depth || (this.matches && !isMatch) ? 0.45 : 1;
    if (isMatch) context.fillStyle = isDark() ? "#a3357a" : "#f19ccb";
    else if (frame?.hue) context.fillStyle = `oklch(${isDark() ? "0.42 0.09" : "0.88 0.08"} ${frame.hue})`;
    else context.fillStyle = isDark() ? "#3b4048" : "#d9dce1";
    if (!frame?.isLate) context.fillRect(x, y, Math.max(wide - 1, 1), FLAME_ROW - 1);
    context.globalAlpha = 1;
    context.strokeStyle = context.fillStyle = isDark() ? "#f2f2f2" : "#16181c";
    const isActive = node === this.active && document.activeElement === this.tree;
    context.setLineDash(isActive ? [] : [2, 3]);
    context.lineWidth = isActive ? 2 : 0.5;
    if (isActive || frame?.isLate) context.strokeRect(x + 1, y + 1, Math.max(wide - 3, 1), FLAME_ROW - 3);
    const fits = Math.floor((wide - 8) / context.measureText("m").width);
    if (fits < 3) return;
    const labels = frame?.labels ?? [`${this.thread.selectedOptions[0].text}, ${seconds(node.total)}`];
    const text = labels.find((label) => label.length <= fits) ?? `${labels.at(-1).slice(0, fits - 1)}…`;
    context.fillText(text, x + 4, y + FLAME_ROW / 2);
  }

  nodeAt(event) {
    const depth = Math.floor(event.offsetY / FLAME_ROW);
    const isAt = ({ node, x, wide }) => node.depth === depth && x <= event.offsetX && event.offsetX < x + wide;
    return this.boxes.find(isAt)?.node;
  }

  showTable(column = this.column ?? "self") {
    const hasLate = this.top.late >= 0.02 * this.top.total;
    this.column = column === "late" && !hasLate ? "self" : column;
    const functions = flameFunctions(this.top, this.frames).sort((a, b) => b[this.column] - a[this.column]);
    const time = (spent) => (spent ? `${seconds(spent)} (${percent(spent / this.top.total)})` : "");
    const rows = functions.slice(0, FLAME_MOST_FUNCTIONS).map(({ name, place, self, total, late }) => {
      const times = [self, total, late].map((spent) => element("td", { class: "number" }, time(spent)));
      times[2].hidden = !hasLate;
      return element("tr", {}, element("td", {}, name), ...times, element("td", {}, place));
    });
    this.rows.replaceChildren(...rows);
    this.heads[2][1].hidden = !hasLate;
    for (const [key, head] of this.heads) head.ariaSort = key === this.column ? "descending" : "none";
  }
}

/** Fills #flame, which a page without stack samples lacks. */
function drawFlame(charts) {
  const place = document.getElementById("flame");
  if (place !== null) new FlameGraph(charts, place);
}
