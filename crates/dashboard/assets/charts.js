// Plots: time series and scatter plots by uPlot, the map and the parallel coordinates on a canvas of their own.
"use strict";

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dark = matchMedia("(prefers-color-scheme: dark)");

async function read(url) {
  const response = await fetch(url);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail);
  return answer;
}

/** Labels with as many digits as tell ticks that are `step` apart from each other. */
const labels = (_, ticks, __, ___, step) => {
  const digits = Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(step))));
  return ticks.map((tick) => (tick === null ? "" : tick.toLocaleString("en", { maximumFractionDigits: digits })));
};

const axis = (label, more) => ({
  label, stroke: ink("--quiet"), grid: { stroke: ink("--line"), width: 1 }, ticks: { stroke: ink("--line") },
  // Across there are ticks and one line, upwards as many digits as the longest number has.
  values: labels, labelSize: 22, size: (_, values, index) => (index === 0 ? 34 : 26 + 7 * Math.max(2, ...(values || []).map((value) => String(value).length))),
  ...more,
});

/** An axis of what is counted. */
const counts = (label) => axis(label, { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] });

const plots = new Map();

/** Draws into an element, in place of what was there. */
function draw(element, options, data) {
  plots.get(element)?.destroy();
  const width = Math.max(240, element.clientWidth);
  plots.set(element, new uPlot({ width, height: 260, ...options }, data, element));
}

addEventListener("resize", () => {
  for (const [element, plot] of plots) plot.setSize({ width: Math.max(240, element.clientWidth), height: plot.height });
});

const colours = {
  completed: "--good", violated: "--warn", aborted: "--quiet", crashed: "--bad", killed: "--warn", failed: "--bad",
};

/** A score in the unit that is read: the change in per cent, or the value. */
function reader(points) {
  const sign = points.goal === "maximise" ? -1 : 1;
  if (points.scale === "ratio") {
    return { of: (score) => (Math.exp(sign * score) - 1) * 100, label: "% against control", name: `${points.objective}, % against control` };
  }
  return { of: (score) => sign * score, label: points.objective, name: points.objective };
}

/** Outcomes of a configuration without a score: they are drawn at the bad edge of a plot. */
const unscored = new Set(["crashed", "violated", "aborted"]);

/** Where what has no score is drawn: beyond the worst that has one. `y` has the scores as they are read. */
function withUnscored(points, y) {
  const known = y.filter((value) => value !== null && Number.isFinite(value));
  const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  const margin = 0.08 * (high - low || 1);
  const isMore = points.goal === "maximise";
  const edge = isMore ? low - margin : high + margin;
  return y.map((value, index) => (value === null && unscored.has(points.outcome[index]) ? edge : value));
}

/** Scatter series by outcome, over the same x. */
function byOutcome(points, x, y) {
  const rows = points.number.map((_, index) => index)
    .filter((index) => y[index] !== null && Number.isFinite(x[index]))
    .sort((a, b) => x[a] - x[b]);
  const outcomes = [...new Set(rows.map((index) => points.outcome[index]))];
  const series = outcomes.map((outcome) => rows.map((index) => (points.outcome[index] === outcome ? y[index] : null)));
  const isScored = (outcome) => rows.some((index) => points.outcome[index] === outcome && points.score[index] !== null);
  const looks = outcomes.map((outcome) => ({
    outcome, label: isScored(outcome) ? outcome : `${outcome} (no value, drawn at the edge)`, stroke: ink(colours[outcome] || "--quiet"), paths: () => null,
    points: { show: true, size: points.number.length > 2000 ? 3 : 6, fill: ink(colours[outcome] || "--quiet") },
  }));
  return { rows, series, looks };
}

function convergence(points, unit) {
  const y = withUnscored(points, points.score.map((score) => (score === null ? null : unit.of(score))));
  const { rows, series, looks } = byOutcome(points, points.number, y);
  let best = null;
  const line = rows.map((index) => {
    const score = points.score[index];
    if (points.outcome[index] === "completed" && (best === null || score < best)) best = score;
    return best === null ? null : unit.of(best);
  });
  draw(document.getElementById("plot-convergence"), {
    scales: { x: { time: false } },
    axes: [counts("Evaluation"), axis(unit.label)],
    series: [{ label: "Evaluation" }, ...looks, { label: "best so far", stroke: ink("--accent"), width: 2, points: { show: false } }],
  }, [rows.map((index) => points.number[index]), ...series, line]);
}

/** Numbers for the values of a parameter: themselves, or their places in a list. */
function scaleOf(points, name, curve) {
  const values = [...points.parameters[name], ...(curve ? curve.value : []), points.control[name]];
  const numbers = values.filter((value) => typeof value === "number");
  if (numbers.length && values.every((value) => typeof value === "number")) {
    const low = Math.min(...numbers);
    // Equal ratios matter equally where a range spans more than a factor of 30.
    return { at: (value) => value, isLog: low > 0 && Math.max(...numbers) / low >= 30, words: null };
  }
  const words = [...new Set(values.map(String))].sort((a, b) => Number(a) - Number(b) || a.localeCompare(b));
  return { at: (value) => words.indexOf(String(value)), isLog: false, words };
}

/** Four round numbers of equal ratios between the ends of a logarithmic axis. */
function ratios([low, high]) {
  const round = [0, 1, 2, 3].map((third) => Number((low * (high / low) ** (third / 3)).toPrecision(2)));
  return [...new Set(round)].filter((number) => number >= low && number <= high);
}

function scatter(element, points, unit, name, curve) {
  const scale = scaleOf(points, name, curve);
  const x = points.parameters[name].map(scale.at);
  const y = withUnscored(points, points.score.map((score) => (score === null ? null : unit.of(score))));
  const { rows, series, looks } = byOutcome(points, x, y);
  const at = rows.map((index) => x[index]);
  // The curve has its own places on the axis: all places together, each series where it has something.
  const curved = curve ? curve.value.map(scale.at) : [];
  const all = [...new Set([...at, ...curved])].sort((a, b) => a - b);
  const place = new Map(all.map((value, index) => [value, index]));
  const blank = () => new Array(all.length).fill(null);
  const [mean, low, high] = [blank(), blank(), blank()];
  curved.forEach((value, index) => {
    const where = place.get(value);
    mean[where] = unit.of(curve.mean[index]);
    const ends = [curve.mean[index] - 2 * curve.sd[index], curve.mean[index] + 2 * curve.sd[index]].map(unit.of);
    low[where] = Math.min(...ends);
    high[where] = Math.max(...ends);
  });
  // Several evaluations may share a value, so points are drawn by themselves, over the plot.
  const marks = rows.map((index) => ({ x: x[index], y: y[index], isUnscored: points.score[index] === null, colour: looks.find((look) => look.outcome === points.outcome[index]).stroke }));
  const visible = [...marks.map((mark) => mark.y), ...mean, ...low, ...high].filter((value) => value !== null && Number.isFinite(value));
  const range = visible.length ? [Math.min(...visible), Math.max(...visible)] : [-1, 1];
  const margin = 0.06 * (range[1] - range[0] || 1);
  const span = all.length ? [all[0], all[all.length - 1]] : [0, 1];
  const pad = scale.isLog ? 0 : 0.03 * (span[1] - span[0] || 1);
  const control = scale.at(points.control[name]);
  draw(element, {
    height: 220,
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { time: false, distr: scale.isLog ? 3 : 1, range: () => [span[0] - pad, span[1] + pad] },
      y: { range: () => [range[0] - margin, range[1] + margin] },
    },
    axes: [
      axis("", scale.words ? { values: (_, ticks) => ticks.map((tick) => scale.words[tick] ?? ""), splits: () => scale.words.map((_, index) => index) }
        : scale.isLog ? { values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en", { maximumSignificantDigits: 2 })), splits: () => ratios(span), filter: (_, ticks) => ticks } : {}),
      axis(""),
    ],
    series: [
      {},
      { stroke: ink("--accent"), width: 2, points: { show: false }, spanGaps: true },
      { stroke: "transparent", points: { show: false }, spanGaps: true },
      { stroke: "transparent", points: { show: false }, spanGaps: true },
    ],
    bands: [{ series: [3, 2], fill: ink("--band") }],
    hooks: {
      draw: [(plot) => {
        const context = plot.ctx;
        context.save();
        context.beginPath();
        context.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
        context.clip();
        const left = plot.valToPos(control, "x", true);
        context.setLineDash([6, 4]);
        context.strokeStyle = ink("--quiet");
        context.beginPath();
        context.moveTo(left, plot.bbox.top);
        context.lineTo(left, plot.bbox.top + plot.bbox.height);
        context.stroke();
        context.globalAlpha = marks.length > 2000 ? 0.25 : 0.8;
        for (const mark of marks) {
          const [at, high] = [plot.valToPos(mark.x, "x", true), plot.valToPos(mark.y, "y", true)];
          cross(context, at, high, mark.colour, marks.length > 2000 ? 1.5 : 3, mark.isUnscored);
        }
        context.restore();
      }],
    },
  }, [all, mean, low, high]);
}

/** A dot for what has a score, a cross for what has none. */
function cross(context, x, y, colour, size, isCross) {
  context.fillStyle = context.strokeStyle = colour;
  context.beginPath();
  if (isCross) {
    context.setLineDash([]);
    context.lineWidth = 2;
    context.moveTo(x - size, y - size);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y - size);
    context.lineTo(x - size, y + size);
    context.stroke();
  } else {
    context.arc(x, y, size, 0, 7);
    context.fill();
  }
}

function scatters(points, unit, model) {
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
    scatter(figure.querySelector(".plot"), points, unit, name, model?.dependence.find((curve) => curve.parameter === name));
  }
}

function importance(model) {
  const note = document.getElementById("model-note");
  const body = document.querySelector("#importance tbody");
  body.textContent = "";
  if (!model.importance.length) {
    note.textContent = "Nothing has been measured yet, so there is no model.";
    return;
  }
  const some = model.used < model.of ? ` They are ${model.used} of ${model.of}, chosen evenly over their scores.` : "";
  note.textContent = `Share of the model's variance that each parameter explains, after ${model.used} evaluations.${some}`;
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  for (const share of model.importance) {
    const row = body.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = share.parameter;
    row.append(head);
    row.insertCell().textContent = percent(share.share);
    row.insertCell().textContent = `${percent(share.low)} to ${percent(share.high)}`;
    const bar = document.createElement("progress");
    bar.max = 1;
    bar.value = share.share;
    bar.setAttribute("aria-hidden", "true");
    row.insertCell().append(bar);
  }
}

/** From the best (accent) over nothing (paper) to the worst (bad). */
function shade(share) {
  const parse = (name) => ink(name).match(/^#(..)(..)(..)/).slice(1, 4).map((part) => parseInt(part, 16));
  const full = (name) => (ink(name).length === 4 ? [...ink(name).slice(1)].map((digit) => 17 * parseInt(digit, 16)) : parse(name));
  const [from, to, part] = share < 0.5 ? [full("--accent"), full("--paper"), 2 * share] : [full("--paper"), full("--bad"), 2 * share - 1];
  return `rgb(${from.map((value, index) => Math.round(value + part * (to[index] - value))).join(",")})`;
}

async function map(id, points, unit) {
  const [x, y] = ["map-x", "map-y"].map((name) => document.getElementById(name).value);
  const caption = document.getElementById("map-caption");
  const canvas = document.getElementById("map");
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (x === y) { caption.textContent = "Choose two parameters."; return; }
  const pair = await read(`/api/v1/experiments/${id}/model/pair?x=${encodeURIComponent(x)}&y=${encodeURIComponent(y)}`);
  const scores = pair.mean.flat();
  if (!scores.length) { caption.textContent = "Nothing has been measured yet, so there is no model."; return; }
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const [left, bottom] = [86, 46];
  const [width, height] = [(canvas.width - left - 10) / pair.x.length, (canvas.height - bottom - 10) / pair.y.length];
  pair.mean.forEach((row, i) => row.forEach((score, j) => {
    context.fillStyle = shade((score - low) / (high - low || 1));
    context.fillRect(left + i * width, 10 + (pair.y.length - 1 - j) * height, width + 1, height + 1);
  }));
  const isDoubtful = pair.feasible.map((row) => row.map((probability) => probability < 0.5));
  isDoubtful.forEach((row, i) => row.forEach((is, j) => {
    if (is) hatch(context, left + i * width, 10 + (pair.y.length - 1 - j) * height, width, height);
  }));
  evaluated(context, points, pair, [x, y], [left, width, height]);
  context.fillStyle = ink("--ink");
  context.font = "13px system-ui, sans-serif";
  const text = (value) => (typeof value === "number" ? Number(value.toPrecision(4)) : value).toString();
  const step = (count) => Math.ceil(count / 6);
  context.textAlign = "center";
  pair.x.forEach((value, i) => { if (i % step(pair.x.length) === 0) context.fillText(text(value), left + (i + 0.5) * width, canvas.height - 28); });
  context.fillText(x, left + (canvas.width - left) / 2, canvas.height - 8);
  context.textAlign = "right";
  pair.y.forEach((value, j) => { if (j % step(pair.y.length) === 0) context.fillText(text(value), left - 8, 14 + (pair.y.length - 0.5 - j) * height); });
  const ends = [unit.of(low), unit.of(high)].map((value) => value.toPrecision(3));
  const doubt = isDoubtful.flat().some((is) => is) ? " Hatched: a configuration there probably crashes or breaks a constraint." : "";
  caption.textContent = `The model's mean of ${unit.name}, from ${ends[0]} (best, blue) to ${ends[1]} (worst, red); ${y} upwards. Dots are evaluations, crosses those without a value.${doubt}`;
}

/** Lines across a cell of the map. */
function hatch(context, left, top, width, height) {
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  context.strokeStyle = ink("--ink");
  context.globalAlpha = 0.55;
  context.lineWidth = 1.5;
  context.beginPath();
  // All cells share one grid of lines, so that they meet.
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

/** The evaluations over the map. */
function evaluated(context, points, pair, [x, y], [left, width, height]) {
  points.number.forEach((_, index) => {
    const [i, j] = [cell(pair.x, points.parameters[x][index]), cell(pair.y, points.parameters[y][index])];
    const has = points.score[index] !== null;
    if (i < 0 || j < 0 || !(has || unscored.has(points.outcome[index]))) return;
    cross(context, left + (i + 0.5) * width, 10 + (pair.y.length - 0.5 - j) * height, ink("--ink"), 3, !has);
  });
}

function parallel(points) {
  const canvas = document.getElementById("parallel");
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  const names = Object.keys(points.parameters);
  // What has no score is worse than everything that has one.
  const worth = (index) => points.score[index] ?? Infinity;
  const rows = points.number.map((_, index) => index).filter((index) => points.score[index] !== null || unscored.has(points.outcome[index]))
    .sort((a, b) => (worth(a) === worth(b) ? 0 : worth(b) - worth(a)));
  if (!rows.length) return;
  const ranks = new Map(rows.map((index, place) => [index, place]));
  const axes = [...names.map((name) => {
    const scale = scaleOf(points, name);
    const bent = (value) => (scale.isLog ? Math.log(scale.at(value)) : scale.at(value));
    const values = points.parameters[name].map(bent);
    return { name, values, low: points.parameters[name][values.indexOf(Math.min(...values))], high: points.parameters[name][values.indexOf(Math.max(...values))] };
  }), { name: "rank", values: points.number.map((_, index) => ranks.get(index) ?? 0), low: "worst", high: "best" }];
  const [top, bottom, side] = [34, 34, 60];
  const place = (index) => side + (index * (canvas.width - 2 * side)) / Math.max(1, axes.length - 1);
  axes.forEach((axis) => { axis.min = Math.min(...axis.values); axis.max = Math.max(...axis.values); });
  const height = (axis, index) => canvas.height - bottom - ((axis.values[index] - axis.min) / (axis.max - axis.min || 1)) * (canvas.height - top - bottom);
  // Of many, the worse ones are drawn by sample: a screen has no room for ten thousand lines.
  const shown = rows.filter((_, place) => place >= rows.length * 0.9 || place % Math.ceil(rows.length / 1000) === 0);
  for (const index of shown) {
    const isBest = ranks.get(index) >= rows.length * 0.9;
    context.strokeStyle = ink(isBest ? "--accent" : points.score[index] === null ? "--bad" : "--quiet");
    context.globalAlpha = isBest ? 0.8 : 0.25;
    context.lineWidth = isBest ? 2 : 1;
    context.beginPath();
    axes.forEach((axis, at) => { const y = height(axis, index); if (at) context.lineTo(place(at), y); else context.moveTo(place(at), y); });
    context.stroke();
  }
  context.globalAlpha = 1;
  context.lineWidth = 1;
  context.strokeStyle = context.fillStyle = ink("--ink");
  context.font = "13px system-ui, sans-serif";
  context.textAlign = "center";
  axes.forEach((axis, at) => {
    context.beginPath();
    context.moveTo(place(at), top);
    context.lineTo(place(at), canvas.height - bottom);
    context.stroke();
    context.fillText(axis.name, place(at), 14);
    const text = (value) => (typeof value === "number" ? Number(value.toPrecision(4)) : value);
    context.fillText(text(axis.high), place(at), 29);
    context.fillText(text(axis.low), place(at), canvas.height - 14);
  });
}

async function experiment(id) {
  let known = -1;
  let points;
  let unit;
  let isBusy = false;
  let isChosen = false;
  const complaining = (work) => work.catch((error) => { document.getElementById("model-note").textContent = error.message; });
  const show = async () => {
    if (isBusy) return;
    isBusy = true;
    try {
      points = await read(`/api/v1/experiments/${id}/points`);
      if (points.number.length !== known) {
        known = points.number.length;
        unit = reader(points);
        const nothing = points.outcome.every((outcome, index) => points.score[index] === null && !unscored.has(outcome));
        for (const section of document.querySelectorAll("#charts > section")) section.hidden = nothing && !section.querySelector("#model-note");
        convergence(points, unit);
        parallel(points);
        if (!document.getElementById("scatters").childElementCount) scatters(points, unit, null);
        const model = await read(`/api/v1/experiments/${id}/model`);
        importance(model);
        if (!isChosen && model.importance.length > 1) {
          isChosen = true;
          model.importance.slice(0, 2).forEach((share, index) => { document.getElementById(["map-x", "map-y"][index]).value = share.parameter; });
        }
        scatters(points, unit, model);
        await map(id, points, unit);
      }
    } finally { isBusy = false; }
  };
  for (const name of ["map-x", "map-y"]) {
    document.getElementById(name).addEventListener("change", () => complaining(map(id, points, unit)));
  }
  document.addEventListener("refreshed", () => complaining(show()));
  dark.addEventListener("change", () => { known = -1; complaining(show()); });
  await complaining(show());
}

async function blocks(element) {
  const { experiment: id, number, metric } = element.dataset;
  const show = async () => {
    const evaluation = await read(`/api/v1/experiments/${id}/evaluations/${number}`);
    const value = (side) => evaluation.blocks.map((block) => lookup(block[side], metric));
    draw(element, {
      scales: { x: { time: false } },
      axes: [counts("Block"), axis(metric)],
      series: [
        { label: "Block" },
        { label: "control", stroke: ink("--quiet"), width: 2, points: { show: true, size: 7 } },
        { label: "experiment", stroke: ink("--accent"), width: 2, points: { show: true, size: 7 } },
      ],
    }, [evaluation.blocks.map((_, index) => index + 1), value("control"), value("experiment")]);
  };
  document.addEventListener("refreshed", () => show().catch(() => {}));
  await show();
}

/** A metric of one side: measured, or counted per request or second. */
function lookup(side, metric) {
  if (metric in side) return side[metric];
  const per = metric.match(/^(.*)_per_(request|s)$/);
  if (!per || !(per[1] in side)) return null;
  return side[per[1]] / side[per[2] === "s" ? "duration_s" : "requests"];
}

async function integrals(element) {
  const { experiment: id, metric } = element.dataset;
  const show = async () => {
    const verification = await read(`/api/v1/experiments/${id}/verification`);
    const hues = ["--accent", "--warn", "--good", "--bad"];
    const lines = [];
    (verification.plan || []).forEach((arm, place) => {
      const measured = verification.runs.filter((run) => run.arm === place).sort((a, b) => a.run - b.run).flatMap((run) => run.blocks);
      for (const [side, dash] of [["experiment", []], ["control", [5, 5]]]) {
        let sum = 0;
        const values = measured.map((block) => (sum += lookup(block[side], metric) ?? 0));
        lines.push({ values, look: { label: side === "experiment" ? arm.name : `control beside ${arm.name}`, stroke: ink(hues[place % hues.length]), dash, width: 2, points: { show: false } } });
      }
    });
    const longest = Math.max(0, ...lines.map((line) => line.values.length));
    const x = Array.from({ length: longest }, (_, index) => index + 1);
    draw(element, {
      scales: { x: { time: false } },
      axes: [counts("Block"), axis(`Sum of ${metric}`)],
      series: [{ label: "Block" }, ...lines.map((line) => line.look)],
    }, [x, ...lines.map((line) => x.map((_, index) => line.values[index] ?? null))]);
  };
  document.addEventListener("refreshed", () => show().catch(() => {}));
  await show();
}

addEventListener("DOMContentLoaded", () => {
  const charts = document.getElementById("charts");
  if (charts) experiment(charts.dataset.experiment);
  for (const [id, fill] of [["plot-blocks", blocks], ["plot-integrals", integrals]]) {
    const element = document.getElementById(id);
    if (element) fill(element).catch((error) => { element.textContent = error.message; });
  }
});
