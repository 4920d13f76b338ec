// What every chart has: colours, units, axes, values at the cursor, and a click through to what is drawn.
import { ask } from "./live.js";
import { zoomable, zoomed } from "./zoom.js";

export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const dark = matchMedia("(prefers-color-scheme: dark)");

export async function read(url) {
  const response = await ask(url);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail);
  return answer;
}

/** The colours of the outcomes: the tables take them from the style sheet, too. */
export const colours = Object.fromEntries(["completed", "violated", "aborted", "crashed", "killed", "failed"].map((it) => [it, `--${it}`]));
/** The colour of an outcome. The style sheet is asked once for each outcome, not for each point. */
export function inks() {
  const known = new Map();
  return (outcome) => {
    if (!known.has(outcome)) known.set(outcome, ink(colours[outcome] || "--quiet"));
    return known.get(outcome);
  };
}

/** Lines that are told apart by colour. Dashes are for what they are compared with. */
export const lines = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5"];

/** A value at the cursor, for the legend: nothing where the cursor is nowhere. */
export const told = (text = digits) => (_, value, __, index) => {
  if (index === null || index === undefined) return "";
  return value === null || value === undefined ? "–" : text(value);
};

/** A number to four significant digits, with the zeros at its end and the sign that people read: the server's `significant`. */
export const digits = (value) => {
  const size = Math.abs(value);
  const text = value === 0 ? "0" : size >= 1e6 || size < 1e-4 ? value.toExponential(3).replace("e+", "e")
    : size >= 1000 ? String(Number(value.toPrecision(4))) : value.toPrecision(4);
  return text.replace(/^-/, "−");
};

/** A change in per cent, as the tables have it: the server's `percent`. */
export const signed = (percent) => {
  const text = Math.abs(percent).toFixed(1);
  return `${percent < 0 && text !== "0.0" ? "−" : "+"}${text} %`;
};

/** A number of seconds, as the tables have it: the server's `duration`. */
export const duration = (s) => (s < 120 ? `${s.toFixed(1)} s` : s < 7200 ? `${(s / 60).toFixed(0)} min` : `${(s / 3600).toFixed(1)} h`);

/** A parameter's value. A whole number has all its digits: it is what somebody sets. */
export const setting = (value) => String(typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(4)) : value);

const prefixes = {
  time: [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
  bytes: [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"], [1, "B"]],
  count: [[1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]],
};

/** The unit in which values up to `most` are read: their divisor, and its name. The server gives kind and scale of a metric. */
export function inUnit(unit, most) {
  const per = unit.per === "/s" ? "/s" : "";
  const all = prefixes[unit.kind];
  const isSmallCount = unit.kind === "count" && Math.abs(most) < 9999.5;
  const [one, name] = isSmallCount ? [1, ""] : all.find(([one]) => Math.abs(most) * unit.scale >= one * 0.99995) || all[all.length - 1];
  const label = `${unit.label}${unit.per === "/request" ? " per request" : ""}`;
  const suffix = `${name}${per}`;
  // A count keeps its whole numbers, as the server's `Unit::text` does.
  const shown = (value) => (isSmallCount && Number.isInteger(value) ? String(value).replace(/^-/, "−") : digits(value));
  const text = (value) => `${shown(value)}${name ? " " : ""}${suffix}`;
  return { of: (value) => (value === null ? null : (value * unit.scale) / one), text, label: suffix ? `${label}, ${suffix}` : label };
}

/** A metric's name with what it is counted per, as the tables have it. */
const named = (unit) => `${unit.label}${{ "/request": " per request", "/s": " per second" }[unit.per] ?? ""}`;

/** How the scores of an experiment are read: a change in per cent, or the value in its unit. */
export function scoreReader(points) {
  const sign = points.goal === "maximise" ? -1 : 1;
  if (points.scale === "ratio") {
    const of = (score) => (score === null ? null : (Math.exp(sign * score) - 1) * 100);
    return { of, label: `${named(points.unit)}, % against control`, short: "% against control", name: named(points.unit), text: signed, control: 0, sign };
  }
  const scores = points.score.filter((score) => score !== null).map(Math.abs);
  const unit = inUnit(points.unit, Math.max(0, ...scores));
  return { of: (score) => (score === null ? null : unit.of(sign * score)), label: unit.label, short: unit.label, name: named(points.unit), text: unit.text, control: null, sign };
}

/** Outcomes of a configuration without a score: they are drawn at the bad edge of a plot. */
export const unscored = new Set(["crashed", "violated", "aborted"]);

/** The ends of the values that are to be told apart: an outlier does not flatten the rest. What must be seen is in `also`. */
export function extent(values, also = []) {
  const known = values.filter((value) => value !== null && Number.isFinite(value)).sort((a, b) => a - b);
  const must = also.filter((value) => value !== null && Number.isFinite(value));
  if (!known.length) return must.length ? [Math.min(...must), Math.max(...must)] : null;
  const at = (share) => known[Math.round(share * (known.length - 1))];
  const fence = 3 * (at(0.75) - at(0.25));
  // With few points nobody can say which one is an outlier.
  const isKept = (value) => known.length < 8 || fence === 0 || (value >= at(0.25) - fence && value <= at(0.75) + fence);
  const kept = [...known.filter(isKept), ...must];
  return [Math.min(...kept), Math.max(...kept)];
}

/** The range of an axis for these values, with a margin. */
export function range(values, also = []) {
  let [low, high] = extent(values, also) ?? [0, 1];
  if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  const margin = 0.08 * (high - low);
  return [low - margin, high + margin];
}

/** Round numbers between the ends of a logarithmic axis: of each power of ten 1, or 1 and 3, or 1, 2 and 5. */
export function ratios([low, high]) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) powers.push(power);
  for (const heads of [[1], [1, 3], [1, 2, 5]]) {
    const round = powers.flatMap((power) => heads.map((head) => Number(`${head}e${power}`))).filter((number) => number >= low && number <= high);
    // A chart beside others has room for six.
    if (round.length >= 3) return round.filter((_, index) => index % Math.ceil(round.length / 6) === 0);
  }
  return [low, high].map((number) => Number(number.toPrecision(2)));
}

/** Labels with as many digits as tell ticks that are `step` apart from each other. */
const labels = (_, ticks, __, ___, step) => {
  const places = Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(step))));
  return ticks.map((tick) => (tick === null ? "" : tick.toLocaleString("en", { maximumFractionDigits: places, useGrouping: false }).replace(/^-/, "−")));
};

export const axis = (label, more) => ({
  label, stroke: ink("--quiet"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line") },
  // Across there are ticks and one line, upwards as many digits as the longest number has.
  values: labels, labelSize: 22, size: (_, values, index) => (index === 0 ? 34 : 26 + 7 * Math.max(2, ...(values || []).map((value) => String(value).length))),
  ...more,
});

/** An axis of moments, in the zone of all times on the pages. The second line of a label is what has changed. */
export const moments = () => axis("Time, UTC", {
  space: 80, size: 48,
  values: [
    [86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1],
    [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
    [0.001, "{ss}.{fff} s", "\n{YYYY}-{MM}-{DD} {HH}:{mm}", null, "\n{MM}-{DD} {HH}:{mm}", null, "\n{HH}:{mm}", null, 1],
  ],
});

/** An axis of what is counted. */
const steps = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((head) => head * 10 ** power)).flat();
export const counts = (label, more) => axis(label, { incrs: steps, ...more });

/** Columns over moments, parted at others: no line joins what stands before and behind one. */
export function parted([at, ...columns], moments) {
  const rows = at.map((moment, index) => [moment, ...columns.map((column) => column[index])]);
  const gaps = moments.filter((moment) => moment >= at[0] && moment <= at[at.length - 1]).map((moment) => [moment, ...columns.map(() => null)]);
  // A gap comes before what is of the same moment.
  const all = [...gaps, ...rows].sort((a, b) => a[0] - b[0]);
  return [at, ...columns].map((_, place) => all.map((row) => row[place]));
}

const plots = new Map();

/** Draws into an element, in place of what was there. */
export function draw(element, options, data) {
  plots.get(element)?.destroy();
  // There may be a sentence that said why there was no chart.
  if (!element.firstElementChild) element.textContent = "";
  const width = Math.max(240, element.clientWidth);
  options.series[0].value ??= told(String);
  // The legend shows each line as it is drawn, with its dashes.
  const markers = { width: 3, dash: (plot, index) => (plot.series[index].dash?.length ? (plot.series[index].dash[0] < 4 ? "dotted" : "dashed") : "solid") };
  const legend = { markers, ...options.legend };
  const tzDate = (at_s) => uPlot.tzDate(new Date(at_s * 1000), "Etc/UTC");
  const plot = new uPlot({ width, height: 260, ...zoomed(element, { tzDate, ...options, legend }, data) }, data, element);
  plots.set(element, plot);
  zoomable(element, plot);
  return plot;
}

let resized;
addEventListener("resize", () => {
  for (const [element, plot] of plots) {
    if (element.isConnected) plot.setSize({ width: Math.max(240, element.clientWidth), height: plot.height });
    else { plot.destroy(); plots.delete(element); }
  }
  clearTimeout(resized);
  resized = setTimeout(() => document.dispatchEvent(new Event("redraw")), 150);
});

/** A dashed line at a value: across, or upwards where `isUp`. */
export function rule(plot, value, isUp, colour = ink("--quiet"), dash = [6, 4]) {
  const { ctx, bbox } = plot;
  const at = plot.valToPos(value, isUp ? "x" : "y", true);
  ctx.save();
  ctx.setLineDash(dash);
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  if (isUp) { ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); }
  else { ctx.moveTo(bbox.left, at); ctx.lineTo(bbox.left + bbox.width, at); }
  ctx.stroke();
  ctx.restore();
}

/** What stands within the plot's frame is drawn by `work`, and nothing beyond it. */
export function inside(plot, work) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left - 4, bbox.top - 4, bbox.width + 8, bbox.height + 8);
  ctx.clip();
  work(ctx, bbox);
  ctx.restore();
}

/** A dot for what has a score, a cross for what has none, a triangle for what lies beyond the edge; a ring around what is verified. */
export function mark(context, { x, y, colour, size, kind, isVerified }) {
  context.fillStyle = context.strokeStyle = colour;
  context.setLineDash([]);
  context.lineWidth = 2;
  context.beginPath();
  if (kind === "cross") {
    context.moveTo(x - size, y - size);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y - size);
    context.lineTo(x - size, y + size);
    context.stroke();
  } else if (kind === "above" || kind === "below") {
    const way = kind === "above" ? -1 : 1;
    context.moveTo(x, y + way * size * 1.6);
    context.lineTo(x - size * 1.3, y - way * size);
    context.lineTo(x + size * 1.3, y - way * size);
    context.fill();
  } else if (size < 2) {
    // Three pixels wide, a square looks like a circle and costs less: there are thousands of them.
    context.fillRect(x - size, y - size, 2 * size, 2 * size);
  } else {
    context.arc(x, y, size, 0, 7);
    context.fill();
  }
  if (isVerified) {
    context.strokeStyle = ink("--ink");
    context.beginPath();
    context.arc(x, y, size + 4, 0, 7);
    context.stroke();
  }
}

/** The evaluations as marks: where each is drawn, and what is said of it. `x` and `y` are values, `[low, high]` the range upwards. */
export function marksOf(points, x, unit, [low, high]) {
  const isMore = points.goal === "maximise";
  const edge = isMore ? low : high;
  const isVerified = verified(points);
  const size = points.number.length > 2000 ? 1.5 : 3.5;
  const marks = [];
  const colour = inks();
  points.number.forEach((number, index) => {
    const outcome = points.outcome[index];
    const score = unit.of(points.score[index]);
    if (x[index] === null || !Number.isFinite(x[index]) || (score === null && !unscored.has(outcome))) return;
    const kind = score === null ? "cross" : score > high ? "above" : score < low ? "below" : "dot";
    marks.push({
      number, x: x[index], y: score === null ? edge : Math.min(high, Math.max(low, score)), kind, size,
      colour: colour(outcome), isVerified: isVerified(index),
      text: `Evaluation ${number}, ${outcome}${score === null ? "" : `: ${unit.text(score)}`}${isVerified(index) ? ", verified" : ""}`,
    });
  });
  return marks;
}

/** Whether an evaluation's configuration is one that was verified. */
export function verified(points) {
  const names = Object.keys(points.parameters);
  const known = new Set((points.verified || []).map((it) => JSON.stringify(names.map((name) => it[name]))));
  return (index) => known.size > 0 && known.has(JSON.stringify(names.map((name) => points.parameters[name][index])));
}

/** A legend of the outcomes that there are, and of the lines. */
export function legend(element, points, extra = []) {
  let list = element.parentElement.querySelector("ul.legend");
  if (!list) {
    list = document.createElement("ul");
    list.className = "legend";
    element.after(list);
  }
  list.textContent = "";
  const add = (text, colour, shape) => {
    const item = document.createElement("li");
    const key = document.createElement("i");
    key.className = shape;
    key.style.color = ink(colour);
    item.append(key, text);
    list.append(item);
  };
  for (const outcome of new Set(points.outcome)) {
    const isScored = points.outcome.some((it, index) => it === outcome && points.score[index] !== null);
    if (isScored) add(outcome, colours[outcome] || "--quiet", "dot");
    else if (unscored.has(outcome)) add(`${outcome}: no value, drawn at the edge`, colours[outcome], "cross");
  }
  for (const [text, colour, shape] of extra) add(text, colour, shape);
}

/** Values at the cursor over an element, and a click through. `find(left, top)` gives what lies there: a text, and an address. */
export function pointed(element, find) {
  if (element.pointed) { element.pointed.find = find; return; }
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  element.append(tip);
  element.pointed = { find };
  const at = (event) => {
    const frame = element.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top, frame.width];
  };
  element.addEventListener("pointermove", (event) => {
    const [left, top, width] = at(event);
    const found = element.pointed.find(left, top);
    tip.hidden = !found;
    element.style.cursor = found?.href ? "pointer" : "";
    if (!found) return;
    if (!tip.isConnected) element.append(tip);
    tip.textContent = found.text;
    tip.style.top = `${Math.max(0, top - 34)}px`;
    tip.style.left = left > width / 2 ? "" : `${left + 12}px`;
    tip.style.right = left > width / 2 ? `${width - left + 12}px` : "";
  });
  element.addEventListener("pointerleave", () => { tip.hidden = true; });
  element.addEventListener("click", (event) => {
    const found = element.pointed.find(...at(event));
    if (found?.href) location.href = found.href;
  });
}

/** The nearest of some marks of a plot, within reach of a finger. */
export function nearest(plot, marks, left, top, reach = 14) {
  const over = plot.over.getBoundingClientRect();
  const root = plot.root.parentElement.getBoundingClientRect();
  const [x, y] = [left - (over.left - root.left), top - (over.top - root.top)];
  let best = null;
  for (const it of marks) {
    const distance = Math.hypot(plot.valToPos(it.x, "x") - x, plot.valToPos(it.y, "y") - y);
    if (distance <= reach && (!best || distance < best.distance)) best = { distance, it };
  }
  return best?.it;
}

/** Numbers for the values of a parameter: themselves, or their places in the list of the specification. */
export function scaleOf(points, name, curve) {
  const values = [...points.parameters[name], ...(curve ? curve.value : []), points.control[name]];
  const numbers = values.filter((value) => typeof value === "number");
  const list = points.values[name];
  if (!list && numbers.length && numbers.length === values.length) {
    const low = Math.min(...numbers);
    // Equal ratios matter equally where a range spans more than a factor of 30.
    return { at: (value) => value, isLog: low > 0 && Math.max(...numbers) / low >= 30, isWhole: numbers.every(Number.isInteger), words: null };
  }
  const words = [...new Set([...(list || []), ...values].map(String))];
  if (!list) words.sort((a, b) => Number(a) - Number(b) || a.localeCompare(b));
  return { at: (value) => words.indexOf(String(value)), isLog: false, words };
}

/** A canvas as sharp as the screen, as wide as its place; returns its context, in pixels of the page. */
export function canvas(element, height, least = 240) {
  const width = Math.max(least, element.parentElement.clientWidth);
  const ratio = window.devicePixelRatio || 1;
  element.width = Math.round(width * ratio);
  element.height = Math.round(height * ratio);
  element.style.height = `${height}px`;
  const context = element.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "13px system-ui, sans-serif";
  return { context, width, height };
}

/** A text that is cut where it would be wider than there is room. */
export function fitted(context, text, room) {
  let cut = String(text);
  if (context.measureText(cut).width <= room) return cut;
  while (cut.length > 1 && context.measureText(`${cut}…`).width > room) cut = cut.slice(0, -1);
  return `${cut}…`;
}
