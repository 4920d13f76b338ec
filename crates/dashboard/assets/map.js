// The model over two parameters: a map in colours, with the evaluations on it.
import { canvas, extent, fitted, ink, mark, pointed, ratios, read, setting, unscored, verified } from "./plot.js";
import { savable } from "./zoom.js";

const parts = (name) => {
  const text = ink(name).slice(1, 7);
  const full = text.length < 6 ? [...text.slice(0, 3)].map((digit) => digit + digit).join("") : text;
  return [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16));
};

/** From the best (accent) over the control (paper) to the worst (bad): `share` from −1 to 1. */
function shade(share) {
  const [from, to] = [parts("--paper"), parts(share < 0 ? "--accent" : "--bad")];
  const part = Math.min(1, Math.abs(share));
  return `rgb(${from.map((value, index) => Math.round(value + part * (to[index] - value))).join(",")})`;
}

/** Lines across a cell. All cells share one grid of lines, so that they meet. */
function hatch(context, left, top, width, height) {
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  context.strokeStyle = ink("--ink");
  context.globalAlpha = 0.5;
  context.lineWidth = 1;
  context.beginPath();
  const first = Math.floor((left + top) / 8) * 8;
  for (let sum = first; sum <= left + top + width + height; sum += 8) {
    context.moveTo(sum - top, top);
    context.lineTo(sum - top - height, top + height);
  }
  context.stroke();
  context.restore();
}

/** Where a value lies among the values of the map, counted in cells. */
function cell(values, value) {
  if (typeof value !== "number" || values.some((it) => typeof it !== "number")) return values.map(String).indexOf(String(value));
  const above = values.findIndex((it) => it >= value);
  if (above <= 0) return above === 0 ? 0 : values.length - 1;
  return above - (values[above] - value) / (values[above] - values[above - 1]);
}

/** A list in the specification's order; numbers as the model gave them. */
function ordered(pair, points, [x, y]) {
  const order = (values, name) => {
    const list = points.values[name]?.map(String);
    const places = values.map((_, index) => index);
    return list ? places.sort((a, b) => list.indexOf(String(values[a])) - list.indexOf(String(values[b]))) : places;
  };
  const [across, up] = [order(pair.x, x), order(pair.y, y)];
  const table = (rows) => across.map((i) => up.map((j) => rows[i][j]));
  return { x: across.map((i) => pair.x[i]), y: up.map((j) => pair.y[j]), mean: table(pair.mean), sd: table(pair.sd), feasible: table(pair.feasible) };
}

/**
 * The ends of the scale of colours, as scores. They follow what was measured: a model may go far beyond it where
 * nothing was. The control is the middle: of a ratio 0, else the middle of what there is.
 */
export function scaled(scores, means, unit) {
  const must = unit.control === null ? [] : [0];
  const [low, high] = extent(scores, must) ?? extent(means, must);
  const middle = unit.control === null ? (low + high) / 2 : 0;
  const isExceeded = means.some((mean) => mean < low - 0.05 * (high - low) || mean > high + 0.05 * (high - low));
  return { low, high, middle, far: Math.max(high - middle, middle - low) || 1, isExceeded };
}

/** What stands beside the bar of colours: where, as a share of its height from the top, and the text. */
function labelled({ low, high, middle }, unit) {
  const [top, bottom] = unit.sign > 0 ? [high, low] : [low, high];
  const at = (score) => (high > low ? (score - top) / (bottom - top) : 0.5);
  const text = (score) => unit.text(unit.of(score));
  const own = [at(middle), unit.control === null ? text(middle) : "control"];
  // The middle may be an end of the scale: two labels there would cover each other.
  return [own, ...[top, bottom].map((score) => [at(score), text(score)]).filter(([place]) => Math.abs(place - own[0]) > 0.06)];
}

let asked = 0;

export async function map(id, points, unit) {
  const mine = ++asked;
  const names = ["map-x", "map-y"].map((name) => document.getElementById(name).value);
  const caption = document.getElementById("map-caption");
  const element = document.getElementById("map");
  const nothing = (text) => { caption.textContent = text; element.hidden = true; };
  if (names[0] === names[1]) { nothing("Choose two different parameters."); return; }
  const [x, y] = names.map(encodeURIComponent);
  const found = await read(`/api/v1/experiments/${id}/model/pair?x=${x}&y=${y}`);
  // What was drawn before stays until there is something newer: a live page never shows an empty map.
  if (mine !== asked) return;
  if (!found.mean.length) { nothing("No evaluation has a value, so there is no model."); return; }
  element.hidden = false;
  paint(id, element, caption, ordered(found, points, names), points, unit, names);
}

function paint(id, element, caption, pair, points, unit, [nameX, nameY]) {
  const isNarrow = element.parentElement.clientWidth < 500;
  const { context, width, height } = canvas(element, isNarrow ? 340 : 460);
  const scale = scaled(points.score, pair.mean.flat(), unit);
  const { middle, far } = scale;
  const labels = labelled(scale, unit);
  // The labels beside the bar of colours have as much room as they need.
  const widest = Math.max(...labels.map(([, text]) => context.measureText(text).width));
  const [left, top, right, bottom] = [isNarrow ? 70 : 92, 12, Math.ceil(widest) + 36, 46];
  const [across, up] = [(width - left - right) / pair.x.length, (height - top - bottom) / pair.y.length];
  const corner = (i, j) => [left + i * across, top + (pair.y.length - 1 - j) * up];
  let isDoubtful = false;
  pair.mean.forEach((row, i) => row.forEach((score, j) => {
    context.fillStyle = shade((score - middle) / far);
    context.fillRect(...corner(i, j), across + 0.5, up + 0.5);
  }));
  pair.feasible.forEach((row, i) => row.forEach((probability, j) => {
    if (probability < 0.5) { isDoubtful = true; hatch(context, ...corner(i, j), across, up); }
  }));
  const place = (valueX, valueY) => {
    const [i, j] = [cell(pair.x, valueX), cell(pair.y, valueY)];
    return i < 0 || j < 0 ? null : [left + (i + 0.5) * across, top + (pair.y.length - 0.5 - j) * up];
  };
  const isVerified = verified(points);
  const dots = [];
  const dark = ink("--ink");
  points.number.forEach((number, index) => {
    const has = points.score[index] !== null;
    const at = place(points.parameters[nameX][index], points.parameters[nameY][index]);
    if (!at || !(has || unscored.has(points.outcome[index]))) return;
    dots.push({ number, x: at[0], y: at[1], text: `Evaluation ${number}, ${points.outcome[index]}${has ? `: ${unit.text(unit.of(points.score[index]))}` : ""}` });
    mark(context, { x: at[0], y: at[1], colour: dark, size: points.number.length > 2000 ? 1.5 : 3, kind: has ? "dot" : "cross", isVerified: isVerified(index) });
  });
  const own = place(points.control[nameX], points.control[nameY]);
  if (own) {
    context.strokeStyle = ink("--ink");
    context.lineWidth = 2;
    context.strokeRect(own[0] - 7, own[1] - 7, 14, 14);
  }
  savable(element.parentElement, () => element);
  frame(context, pair, [nameX, nameY], { left, top, right, bottom, width, height, across, up });
  bar(context, unit, scale, labels, { left: width - right + 14, top, height: height - top - bottom });
  const doubt = isDoubtful ? " Hatched: a configuration there probably crashes or breaks a constraint." : "";
  caption.textContent = `The model's mean of ${unit.label}. Dots are evaluations, crosses those without a value, rings the verified ones. The square is the control.${scale.isExceeded ? " The colours end with the measured values: the model goes beyond them." : ""}${doubt}`;
  pointed(element.parentElement, (atX, atY) => {
    const dot = dots.find((it) => Math.hypot(it.x - atX, it.y - atY) < 7);
    if (dot) return { text: dot.text, href: `/experiments/${id}/evaluations/${dot.number}` };
    const [i, j] = [Math.floor((atX - left) / across), pair.y.length - 1 - Math.floor((atY - top) / up)];
    if (!(i >= 0 && j >= 0 && i < pair.x.length && j < pair.y.length)) return null;
    const feasible = pair.feasible[i][j] < 0.995 ? `, feasible with a probability of ${Math.round(100 * pair.feasible[i][j])} %` : "";
    return { text: `${nameX} ${setting(pair.x[i])}, ${nameY} ${setting(pair.y[j])}: ${unit.text(unit.of(pair.mean[i][j]))}${feasible}` };
  });
}

/** Round numbers of an axis of the map, at most so many: of powers of ten where the cells grow by a factor. */
export function round(values, most) {
  const [low, high] = [values[0], values.at(-1)];
  const isLog = low > 0 && values.length > 2 && high - values.at(-2) > 3 * (values[1] - low);
  if (isLog) {
    const found = ratios([low, high]);
    return found.filter((_, index) => index % Math.ceil(found.length / most) === 0);
  }
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((head) => head * power).find((it) => it >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** Where the labels of an axis stand, in cells, and what they say: all values if there is room, else round numbers. */
function labelsOf(values, room, one) {
  const most = Math.max(2, Math.floor(room / one(values.map(setting))));
  const isCrowded = values.length > most && values.every((value) => typeof value === "number");
  const shown = isCrowded ? round(values, most) : values;
  const every = Math.ceil(shown.length / most);
  return shown.filter((_, index) => index % every === 0).map((value) => [cell(values, value), setting(value)]);
}

function frame(context, pair, [nameX, nameY], box) {
  context.fillStyle = ink("--ink");
  context.textAlign = "center";
  const inner = box.width - box.left - box.right;
  // Labels of one line have as much room as the widest one needs.
  const widest = (texts) => 18 + Math.min(60, Math.max(...texts.map((text) => context.measureText(text).width)));
  for (const [i, text] of labelsOf(pair.x, inner, widest)) {
    context.fillText(fitted(context, text, 60), box.left + (i + 0.5) * box.across, box.height - 28);
  }
  context.fillText(fitted(context, nameX, inner), box.left + inner / 2, box.height - 8);
  context.textAlign = "right";
  for (const [j, text] of labelsOf(pair.y, box.height - box.top - box.bottom, () => 40)) {
    context.fillText(fitted(context, text, box.left - 24), box.left - 8, box.top + 5 + (pair.y.length - 0.5 - j) * box.up);
  }
  context.save();
  context.translate(13, box.top + (box.height - box.top - box.bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.textAlign = "center";
  context.fillText(nameY, 0, 0);
  context.restore();
}

/** What the colours mean. The better end is at the bottom where less is better, as on the axes of the other plots. */
function bar(context, unit, { low, high, middle, far }, labels, box) {
  const steps = 64;
  const [first, last] = unit.sign > 0 ? [high, low] : [low, high];
  for (let step = 0; step < steps; step++) {
    context.fillStyle = shade((first + ((step + 0.5) / steps) * (last - first) - middle) / far);
    context.fillRect(box.left, box.top + (step * box.height) / steps, 12, box.height / steps + 0.5);
  }
  context.strokeStyle = ink("--line");
  context.lineWidth = 1;
  context.strokeRect(box.left, box.top, 12, box.height);
  context.fillStyle = ink("--ink");
  context.textAlign = "left";
  for (const [place, text] of labels) {
    const y = box.top + place * box.height + 4;
    context.fillText(text, box.left + 16, Math.min(box.top + box.height, Math.max(box.top + 10, y)));
  }
}
