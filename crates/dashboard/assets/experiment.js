// The charts of every page: this looks for their places and fills those that the page has.
import { axis, counts, dark, draw, ink, inside, legend, mark, marksOf, nearest, pointed, range, read, rule, scoreReader, unscored } from "./plot.js";
import { importance, scatters } from "./parameters.js";
import { map } from "./map.js";
import { parallel } from "./parallel.js";
import { blocks, compared, evidence, gain, integrals, runs } from "./series.js";

function convergence(id, points, unit) {
  const element = document.getElementById("plot-convergence");
  const scores = points.score.map(unit.of);
  let best = null;
  const steps = points.number.map((_, index) => {
    const score = points.score[index];
    if (points.outcome[index] === "completed" && score !== null && (best === null || score < best)) best = score;
    return unit.of(best);
  });
  const visible = range(scores, [unit.control, ...steps.slice(-1)]);
  const marks = marksOf(points, points.number, unit, visible);
  const plot = draw(element, {
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false }, y: { range: () => visible } },
    axes: [counts("Evaluation"), axis(unit.short)],
    series: [{}, { stroke: ink("--accent"), width: 2, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }],
    hooks: {
      draw: [(plot) => inside(plot, (context) => {
        if (unit.control !== null) rule(plot, unit.control, false);
        context.globalAlpha = marks.length > 2000 ? 0.4 : 0.9;
        for (const it of marks) mark(context, { ...it, x: plot.valToPos(it.x, "x", true), y: plot.valToPos(it.y, "y", true) });
      })],
    },
  }, [points.number, steps]);
  const beyond = marks.filter((it) => it.kind === "above" || it.kind === "below").length;
  legend(element, points, [
    ["best so far", "--accent", "stroke"],
    ...(unit.control === null ? [] : [["control", "--quiet", "dashes"]]),
    ...(marks.some((it) => it.isVerified) ? [["verified", "--ink", "ring"]] : []),
    ...(beyond ? [[`${beyond} beyond the edge`, "--quiet", "triangle"]] : []),
  ]);
  pointed(element, (left, top) => {
    const it = nearest(plot, marks, left, top);
    return it && { text: it.text, href: `/experiments/${id}/evaluations/${it.number}` };
  });
}

async function experiment(id) {
  let known = "";
  let points;
  let unit;
  let model = null;
  let isBusy = false;
  let isStale = false;
  let isChosen = false;
  const complaining = (work) => work.catch((error) => { for (const place of ["model-note", "map-caption"]) document.getElementById(place).textContent = `There is no model: ${error.message}`; });
  // Each chart is on the screen before the next one is begun: ten thousand marks take a while.
  const quick = async () => {
    for (const chart of [convergence, runs, parallel, scatters]) {
      chart(id, points, unit, model);
      await new Promise((painted) => { setTimeout(painted); });
    }
  };
  const show = async () => {
    if (isBusy) { isStale = true; return; }
    isBusy = true;
    try {
      points = await read(`/api/v1/experiments/${id}/points`);
      // A block of a running evaluation changes nothing here.
      const state = `${points.number.length} ${points.verified.length}`;
      if (state === known) return;
      known = state;
      unit = scoreReader(points);
      const nothing = points.outcome.every((outcome, index) => points.score[index] === null && !unscored.has(outcome));
      const isAlone = Object.keys(points.parameters).length < 2;
      for (const section of document.querySelectorAll("#charts > section")) {
        // Shares of importance and the map of two say nothing of a single parameter.
        const isOfSeveral = section.querySelector("#importance, #map") !== null;
        section.hidden = (isAlone && isOfSeveral) || (nothing && !section.querySelector("#model-note"));
      }
      if (nothing) { importance({ importance: [] }); return; }
      await quick();
      model = await read(`/api/v1/experiments/${id}/model`);
      importance(model);
      if (!isChosen && model.importance.length > 1) {
        isChosen = true;
        model.importance.slice(0, 2).forEach((share, index) => { document.getElementById(["map-x", "map-y"][index]).value = share.parameter; });
      }
      scatters(id, points, unit, model);
      if (Object.keys(points.parameters).length > 1) await map(id, points, unit);
    } finally {
      isBusy = false;
      if (isStale) { isStale = false; complaining(show()); }
    }
  };
  for (const name of ["map-x", "map-y"]) {
    document.getElementById(name).addEventListener("change", () => complaining(map(id, points, unit)));
  }
  document.addEventListener("refreshed", () => complaining(show()));
  document.addEventListener("redraw", () => { if (points && unit) { parallel(id, points, unit); if (model) complaining(map(id, points, unit)); } });
  dark.addEventListener("change", () => { known = ""; complaining(show()); });
  await complaining(show());
}

/** Fills each place of a kind now, and whenever the page has been read again. */
function fill(kind, work) {
  const show = () => {
    for (const element of document.querySelectorAll(`.plot[data-chart=${kind}]`)) {
      work(element).catch((error) => { element.textContent = error.message; });
    }
  };
  document.addEventListener("refreshed", show);
  dark.addEventListener("change", show);
  show();
}

const charts = document.getElementById("charts");
if (charts) experiment(charts.dataset.experiment);
fill("blocks", blocks);
fill("integrals", integrals);
fill("gain", gain);
fill("evidence", evidence);
fill("compare", compared);
