// Parallel coordinates: a line for each evaluation over every parameter, which ends in its value. Dragging along an axis selects.
import { canvas, fitted, ink, pointed, scaleOf, setting, unscored } from "./plot.js";
import { savable } from "./zoom.js";

/** The axes: each has a place between 0 and 1 for every evaluation. */
function axesOf(points, unit, rows) {
  const axes = Object.keys(points.parameters).map((name) => {
    const scale = scaleOf(points, name);
    const bent = (at) => (scale.isLog ? Math.log(at) : at);
    const values = points.parameters[name].map(scale.at);
    const all = scale.words ? scale.words.map((_, index) => index) : values;
    const ends = [Math.min(...all), Math.max(...all)];
    const [low, high] = ends.map(bent);
    const [lowest, highest] = ends.map((at) => (scale.words ? scale.words[at] : setting(at)));
    return { name, low: lowest, high: highest, at: values.map((at) => (bent(at) - low) / (high - low || 1)), ticks: scale.words?.map((word, index) => [index / (scale.words.length - 1 || 1), word]) };
  });
  const scores = points.score.map(unit.of);
  const known = scores.filter((score) => score !== null);
  const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  // What has no value is at the bad end.
  const bad = points.goal === "maximise" ? 0 : 1;
  axes.push({ name: unit.name, low: unit.text(low), high: unit.text(high), at: scores.map((score) => (score === null ? bad : (score - low) / (high - low || 1))) });
  return { axes, rows };
}

export function parallel(id, points, unit) {
  const element = document.getElementById("parallel");
  const caption = document.getElementById("parallel-caption");
  // What breaks a constraint is never among the best, whatever its value.
  const holds = (index) => points.score[index] !== null && points.outcome[index] === "completed";
  const worth = (index) => holds(index) ? points.score[index] : Infinity;
  const rows = points.number.map((_, index) => index).filter((index) => points.score[index] !== null || unscored.has(points.outcome[index]))
    .sort((a, b) => (worth(a) === worth(b) ? 0 : worth(b) - worth(a)));
  if (!rows.length) return;
  const { axes } = axesOf(points, unit, rows);
  const brushes = element.brushes ??= new Map();
  const place = new Map(rows.map((index, at) => [index, at]));
  const isBest = (index) => holds(index) && place.get(index) >= Math.floor(rows.length * 0.9);
  const isChosen = (index) => axes.every((axis) => {
    const brush = brushes.get(axis.name);
    return !brush || (axis.at[index] >= brush[0] - 1e-9 && axis.at[index] <= brush[1] + 1e-9);
  });
  // Of many, the worse ones are drawn by sample: a screen has no room for ten thousand lines.
  const shown = () => rows.filter((index, at) => isChosen(index) && (brushes.size || isBest(index) || at % Math.ceil(rows.length / 1000) === 0)).slice(-3000);
  const [top, bottom, side] = [38, 24, 44];
  let size;
  const left = (index) => side + (index * (size.width - 2 * side)) / Math.max(1, axes.length - 1);
  const height = (share) => size.height - bottom - share * (size.height - top - bottom);
  const line = (context, index) => {
    context.beginPath();
    axes.forEach((axis, at) => { const y = height(axis.at[index]); if (at) context.lineTo(left(at), y); else context.moveTo(left(at), y); });
    context.stroke();
  };
  const paint = () => {
    // Names are read where each axis has room for one; a narrow screen scrolls along them.
    element.parentElement.style.minWidth = `${70 * axes.length}px`;
    size = canvas(element, 340);
    const { context } = size;
    const [good, bad, other] = ["--accent", "--bad", "--quiet"].map(ink);
    for (const index of shown()) {
      const isGood = isBest(index);
      context.strokeStyle = isGood ? good : points.score[index] === null ? bad : other;
      context.globalAlpha = isGood ? 0.85 : rows.length > 300 ? 0.15 : 0.35;
      context.lineWidth = isGood ? 2 : 1;
      line(context, index);
    }
    context.globalAlpha = 1;
    axes.forEach((axis, at) => {
      const x = left(at);
      const brush = brushes.get(axis.name);
      if (brush) {
        context.fillStyle = ink("--band");
        context.fillRect(x - 8, height(brush[1]), 16, height(brush[0]) - height(brush[1]));
      }
      context.strokeStyle = context.fillStyle = ink("--ink");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, size.height - bottom);
      context.stroke();
      const room = (size.width - 2 * side) / Math.max(1, axes.length - 1);
      const isLast = at === axes.length - 1;
      context.textAlign = at === 0 ? "left" : isLast ? "right" : "center";
      const edge = at === 0 ? 2 : isLast ? size.width - 2 : x;
      context.fillText(fitted(context, axis.name, room - 8), edge, 13);
      context.fillText(fitted(context, axis.high, room - 8), edge, 29);
      context.fillText(fitted(context, axis.low, room - 8), edge, size.height - 8);
      for (const [share, word] of axis.ticks || []) {
        if (share > 0 && share < 1) context.fillText(fitted(context, word, room / 2), at === 0 ? x + 4 : x, height(share) - 3);
      }
    });
    const chosen = rows.filter(isChosen);
    const best = chosen[chosen.length - 1];
    const bestText = best !== undefined && holds(best) ? ` The best of them is evaluation ${points.number[best]} with ${unit.text(unit.of(points.score[best]))}.` : "";
    caption.textContent = brushes.size
      ? `${chosen.length} of ${rows.length} evaluations are selected.${bestText} Click on an axis to clear its selection.`
      : "One line for each evaluation, from its parameters to its value. Blue: the best tenth of the evaluations that hold the constraints. Red: evaluations without a value. Drag along an axis to select.";
  };
  const axisAt = (x) => axes.findIndex((_, at) => Math.abs(left(at) - x) < 16);
  const share = (y) => Math.min(1, Math.max(0, (size.height - bottom - y) / (size.height - top - bottom)));
  brush(element, { axisAt, share, brushes, axes, paint });
  pointed(element.parentElement, (x, y) => {
    const part = Math.min(axes.length - 2, Math.max(0, Math.floor(((x - side) / (size.width - 2 * side)) * (axes.length - 1))));
    if (axisAt(x) >= 0) return null;
    const along = (x - left(part)) / (left(part + 1) - left(part));
    const distance = (index) => Math.abs(height(axes[part].at[index]) + along * (height(axes[part + 1].at[index]) - height(axes[part].at[index])) - y);
    let near = null;
    for (const index of shown()) if (distance(index) < 5 && (near === null || distance(index) < distance(near))) near = index;
    if (near === null) return null;
    const score = points.score[near] === null ? "" : `: ${unit.text(unit.of(points.score[near]))}`;
    return { text: `Evaluation ${points.number[near]}, ${points.outcome[near]}${score}`, href: `/experiments/${id}/evaluations/${points.number[near]}` };
  });
  savable(element.parentElement, () => element);
  paint();
}

/** Dragging along an axis selects a part of it; a click takes that back. */
function brush(element, now) {
  const isFirst = !element.brush;
  element.brush = now;
  if (!isFirst) return;
  let drag = null;
  const at = (event) => {
    const frame = element.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  element.addEventListener("pointerdown", (event) => {
    const [x, y] = at(event);
    const axis = element.brush.axes[element.brush.axisAt(x)];
    if (!axis) return;
    drag = { name: axis.name, from: element.brush.share(y) };
    element.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  element.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const to = element.brush.share(at(event)[1]);
    element.brush.brushes.set(drag.name, [Math.min(drag.from, to), Math.max(drag.from, to)]);
    element.brush.paint();
  });
  element.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const to = element.brush.share(at(event)[1]);
    if (Math.abs(to - drag.from) < 0.02) element.brush.brushes.delete(drag.name);
    drag = null;
    element.brush.paint();
  });
}
