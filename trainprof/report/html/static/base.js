// What every picture needs: the payload, numbers as the terminal page writes them, colours of the
// theme, elements, the tooltip, and when to draw.

const ARRAY_KINDS = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array };
const NOT_MEASURED = "not measured";

function decodeArray(kind, base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new ARRAY_KINDS[kind](bytes.buffer);
}

/** Replaces each {"f4": base64} below a node of the payload by its typed array. */
function decode(node) {
  if (node === null || typeof node !== "object") return node;
  const entries = Object.entries(node);
  if (entries.length === 1 && entries[0][0] in ARRAY_KINDS && typeof entries[0][1] === "string") {
    return decodeArray(...entries[0]);
  }
  for (const [key, value] of entries) node[key] = decode(value);
  return node;
}

function readPayload() {
  const script = document.getElementById("charts");
  return script === null ? null : decode(JSON.parse(script.textContent));
}

function isKnown(value) {
  return value !== null && value !== undefined && Number.isFinite(value);
}

function fixed(value, decimals) {
  const digits = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  return value.toLocaleString("en-US", { ...digits, signDisplay: "negative" });
}

/** A number with three digits that count: "4.33", "1,250". */
function threeDigits(value) {
  const magnitude = Math.abs(value);
  return fixed(value, magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0);
}

const TIME_UNITS = [
  [1e-6, "µs", 1e-3],
  [1e-3, "ms", 1],
  [1, "s", 600],
  [60, "min", 6000],
  [3600, "h", Infinity],
];

/** A duration in its own unit: "231 ms", "58.4 s". */
function seconds(value) {
  if (!isKnown(value)) return NOT_MEASURED;
  if (value === 0) return "0 s";
  const printed = Number(Math.abs(value).toPrecision(3));
  const [factor, unit] = TIME_UNITS.find(([, , limit]) => printed < limit);
  return `${threeDigits(value / factor)} ${unit}`;
}

/** A size in binary units: "612 MiB". */
function byteCount(value) {
  if (!isKnown(value)) return NOT_MEASURED;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let exponent = 0;
  let scaled = value;
  for (; Math.abs(scaled) >= 999.5 && exponent < units.length - 1; exponent++) scaled /= 1024;
  return `${exponent ? threeDigits(scaled) : fixed(scaled, 0)} ${units[exponent]}`;
}

function count(value) {
  return isKnown(value) ? fixed(value, 0) : NOT_MEASURED;
}

/** A number with its noun: "1 step", "12,345 steps". */
function counted(value, noun, many = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : many}`;
}

/** A share of 0 to 1 in whole percent; "< 1 %" for what is there but rounds to none. */
function percent(share) {
  if (!isKnown(share)) return NOT_MEASURED;
  return share > 0 && share <= 0.005 ? "< 1 %" : `${fixed(share * 100, 0)} %`;
}

/** How a figure of each unit of the payload is written. */
const FORMATS = {
  s: seconds,
  "%": (value) => `${fixed(value, 0)} %`,
  bytes: byteCount,
  "bytes/s": (value) => `${byteCount(value)}/s`,
  W: (value) => `${threeDigits(value)} W`,
};

/** A point of the run, with the digits that steps of `step_s` need: "12.5 min". */
function clock(value, step_s, largest = value) {
  const isIn = (unit_s, from_s) => largest >= from_s && step_s >= unit_s / 10;
  const [factor, unit] = isIn(3600, 6000) ? [3600, "h"] : isIn(60, 600) ? [60, "min"] : [1, "s"];
  const decimals = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step_s / factor) - 1e-9)));
  const digits = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  return `${(value / factor).toLocaleString("en-US", digits)} ${unit}`;
}

/** Makes an element; text is always set as text. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A colour of the present theme, by the name of the page's variable. */
function colour(name, otherwise = "#888") {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || otherwise;
}

function keyColour(key) {
  return colour(`key-${key}`, colour("muted"));
}

/** Colour of one of `total` lines in a chart. */
function lineColour(index, total) {
  if (total === 1) return colour("accent");
  return `hsl(${Math.round(215 + (360 * index) / total) % 360} 65% ${isDark() ? 65 : 42}%)`;
}

function swatch() {
  return element("span", { class: "swatch" });
}

function faded(anyColour, opacity) {
  return `color-mix(in srgb, ${anyColour} ${Math.round(opacity * 100)}%, transparent)`;
}

/** Red, green and blue, 0 to 255, of any CSS colour. */
function channels(anyColour) {
  const context = element("canvas", { width: 1, height: 1 }).getContext("2d");
  context.fillStyle = anyColour;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data.slice(0, 3);
}

/** Gives a canvas its size in CSS pixels; returns a context whose unit is one of them. */
function sizedContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const drawings = [];
let nextFrame = 0;

/** Draws now, and again whenever the theme or the width of the page changes. */
function keepDrawn(draw) {
  drawings.push(draw);
  draw();
}

function drawAllSoon() {
  cancelAnimationFrame(nextFrame);
  nextFrame = requestAnimationFrame(() => drawings.forEach((draw) => draw()));
}

let tip = null;

/** Shows text near a point of the screen, in CSS pixels. */
function showTip(text, x, y) {
  if (tip === null) {
    tip = element("div", { class: "tip", role: "tooltip" });
    document.body.append(tip);
  }
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(x + 12, document.documentElement.clientWidth - width - 4);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${y + 16 + height > window.innerHeight ? y - height - 8 : y + 16}px`;
}

function hideTip() {
  if (tip !== null) tip.hidden = true;
}

const THEMES = ["system", "light", "dark"];
const darkSystem = window.matchMedia("(prefers-color-scheme: dark)");
let theme = "system";

function isDark() {
  return theme === "dark" || (theme === "system" && darkSystem.matches);
}

// Pages of file:// may have no storage, or one that throws.
function storedTheme() {
  try {
    return window.localStorage.getItem("trainprof-theme");
  } catch {
    return null;
  }
}

function setTheme(name, button) {
  theme = THEMES.includes(name) ? name : "system";
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = `Theme: ${theme}`;
  try {
    window.localStorage.setItem("trainprof-theme", theme);
  } catch {
    // It holds until the page is closed.
  }
}

function startTheme() {
  document.documentElement.classList.add("scripted");
  darkSystem.addEventListener("change", drawAllSoon);
  const button = document.getElementById("theme");
  if (button === null) return;
  setTheme(storedTheme(), button);
  button.addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length], button);
    drawAllSoon();
  });
}
