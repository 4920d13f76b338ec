// The objective over each parameter, and how much each explains.
import { axis, counts, draw, ink, inside, mark, marksOf, nearest, pointed, range, ratios, rule, scaleOf, setting } from "./plot.js";

/** A word that fits where each of several has the same room. */
function cut(word, room_px) {
  const most = Math.max(3, Math.floor(room_px / 7));
  return word.length <= most ? word : `${word.slice(0, most - 1)}…`;
}

/** A tick of a chart that has others beside it: a long number would run into the next one. */
const short = (tick) => (Math.abs(tick) < 1e5 ? String(setting(Number(tick.toPrecision(2)))) : tick.toExponential(2).replace(/\.?0*e\+/, "e"));

function acrossAxis(scale, span, name) {
  if (scale.words) return axis(name, { values: (plot, ticks) => ticks.map((tick) => cut(scale.words[tick] ?? "", (plot.width - 70) / scale.words.length)), splits: () => scale.words.map((_, index) => index), filter: (_, ticks) => ticks });
  const isLong = Math.max(...span.map(Math.abs)) >= 1e5;
  // A whole number has no ticks between its values.
  if (!scale.isLog) return (scale.isWhole ? counts : axis)(name, isLong ? { values: (_, ticks) => ticks.map(short) } : {});
  return axis(name, { values: (_, ticks) => ticks.map(short), splits: () => ratios(span), filter: (_, ticks) => ticks });
}

function scatter(element, id, points, unit, name, curve) {
  const scale = scaleOf(points, name, curve);
  const x = points.parameters[name].map(scale.at);
  const scores = points.score.map(unit.of);
  const curved = curve ? curve.value.map(scale.at) : [];
  const order = curved.map((_, index) => index).sort((a, b) => curved[a] - curved[b]);
  const band = (factor) => order.map((index) => unit.of(curve.mean[index] + factor * curve.sd[index]));
  const [mean, low, high] = curve ? [band(0), band(-2 * unit.sign), band(2 * unit.sign)] : [[], [], []];
  const visible = range(scores, [...mean, unit.control]);
  const marks = marksOf(points, x, unit, visible);
  const places = [...x, ...curved, ...(scale.words ? scale.words.map((_, index) => index) : [])].filter(Number.isFinite);
  const span = places.length ? [Math.min(...places), Math.max(...places)] : [0, 1];
  // Of words each has the same room, the first and the last one too.
  const pad = scale.words ? 0.5 : scale.isLog ? 0 : 0.04 * (span[1] - span[0] || 1);
  const plot = draw(element, {
    height: 240,
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { time: false, distr: scale.isLog ? 3 : 1, range: () => [span[0] - pad, span[1] + pad] },
      y: { range: () => visible },
    },
    axes: [acrossAxis(scale, span, ""), axis(unit.short)],
    series: [
      {},
      { stroke: ink("--accent"), width: 2, points: { show: false } },
      { stroke: "transparent", points: { show: false } },
      { stroke: "transparent", points: { show: false } },
    ],
    bands: [{ series: [3, 2], fill: ink("--band") }],
    hooks: {
      draw: [(plot) => inside(plot, (context) => {
        rule(plot, scale.at(points.control[name]), true);
        if (unit.control !== null) rule(plot, unit.control, false);
        context.globalAlpha = marks.length > 2000 ? 0.25 : 0.85;
        for (const it of marks) mark(context, { ...it, x: plot.valToPos(it.x, "x", true), y: plot.valToPos(it.y, "y", true) });
      })],
    },
  }, curve ? [order.map((index) => curved[index]), mean, low, high] : [span, [null, null], [null, null], [null, null]]);
  pointed(element, (left, top) => {
    const it = nearest(plot, marks, left, top);
    return it && { text: `${it.text}, ${name} = ${scale.words ? scale.words[it.x] : setting(it.x)}`, href: `/experiments/${id}/evaluations/${it.number}` };
  });
}

export function scatters(id, points, unit, model) {
  const grid = document.getElementById("scatters");
  const order = model ? model.importance.map((share) => share.parameter) : [];
  const names = Object.keys(points.parameters).sort((a, b) => (order.indexOf(a) + 1 || 99) - (order.indexOf(b) + 1 || 99));
  for (const name of names) {
    let figure = document.getElementById(`scatter-${name}`);
    if (!figure) {
      figure = document.createElement("figure");
      figure.id = `scatter-${name}`;
      const heading = document.createElement("h3");
      heading.textContent = name;
      const plot = document.createElement("div");
      plot.className = "plot";
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", `The objective over ${name}; the numbers are in the CSV`);
      figure.append(heading, plot);
    }
    // The most important ones first, as soon as that is known.
    grid.append(figure);
    scatter(figure.querySelector(".plot"), id, points, unit, name, model?.dependence.find((curve) => curve.parameter === name));
  }
}

/** Whole per cent that add up to 100: those with the largest rest are rounded up. */
function wholes(shares) {
  const sum = shares.reduce((sum, share) => sum + share, 0) || 1;
  const exact = shares.map((share) => (100 * share) / sum);
  const floors = exact.map(Math.floor);
  const missing = Math.round(exact.reduce((sum, it) => sum + it, 0)) - floors.reduce((sum, it) => sum + it, 0);
  const order = exact.map((_, index) => index).sort((a, b) => (exact[b] - floors[b]) - (exact[a] - floors[a]) || a - b);
  for (const index of order.slice(0, missing)) floors[index] += 1;
  return floors;
}

export function importance(model) {
  const note = document.getElementById("model-note");
  const body = document.querySelector("#importance tbody");
  body.textContent = "";
  document.getElementById("importance").hidden = !model.importance.length;
  if (!model.importance.length) {
    note.textContent = "No evaluation has a value, so there is no model.";
    return;
  }
  const some = model.used < model.of ? ` of ${model.of} evaluations, spread evenly over the scores` : " evaluations";
  note.textContent = `The model was fitted to ${model.used}${some}.`;
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  const shown = wholes(model.importance.map((share) => share.share));
  for (const [index, share] of model.importance.entries()) {
    const row = body.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = share.parameter;
    row.append(head);
    row.insertCell().textContent = `${shown[index]} %`;
    row.insertCell().textContent = `${percent(share.low)} to ${percent(share.high)}`;
    const bar = document.createElement("progress");
    bar.max = 1;
    bar.value = shown[index] / 100;
    bar.setAttribute("aria-hidden", "true");
    row.insertCell().append(bar);
  }
}
