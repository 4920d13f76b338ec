// Series: blocks of an evaluation, integrals of a verification, rounds of a continuous experiment, several experiments.
import { moment } from "./live.js";
import { axis, counts, draw, duration, ink, inks, inUnit, inside, legend, lines, mark, moments, parted, pointed, range, read, rule, scoreReader, signed, told } from "./plot.js";

const line = (label, place, more) => ({ label, stroke: ink(lines[place % lines.length]), width: 2, points: { show: false }, ...more });
/** Of lines in one place the lower ones are seen on both sides of the upper ones. */
const width = (place, count) => 2 + Math.min(2, 4 / (count - 1 || 1)) * (count - 1 - place);

/** A metric of one side: measured, or counted per request or second. */
function lookup(side, metric) {
  if (metric in side) return side[metric];
  const per = metric.match(/^(.*)_per_(request|s)$/);
  if (!per) return null;
  const counted = lookup(side, per[1]);
  return counted === null ? null : counted / side[per[2] === "s" ? "duration_s" : "requests"];
}

export async function blocks(element) {
  const { experiment: id, number, metric } = element.dataset;
  const evaluation = await read(`/api/v1/experiments/${id}/evaluations/${number}`);
  if (!evaluation.blocks.length) return;
  const value = (side) => evaluation.blocks.map((block) => lookup(block[side], metric));
  const all = [...value("control"), ...value("experiment")].filter((it) => it !== null);
  const unit = inUnit(JSON.parse(element.dataset.unit), Math.max(...all.map(Math.abs)));
  const look = (label, more) => line(label, 0, { points: { show: true, size: 7 }, value: told(unit.text), ...more });
  draw(element, {
    scales: { x: { time: false } },
    axes: [counts("Block"), axis(unit.label)],
    series: [{ label: "Block" }, look("control", { stroke: ink("--quiet"), dash: [5, 5] }), look("candidate")],
  }, [evaluation.blocks.map((_, index) => index + 1), value("control").map(unit.of), value("experiment").map(unit.of)]);
}

export async function integrals(element) {
  const { experiment: id, metric } = element.dataset;
  const verification = await read(`/api/v1/experiments/${id}/verification`);
  const all = [];
  // A new verification without a run does not hide the last one.
  const { last } = verification;
  const arms = last ? last.arms : (verification.plan || []).map((arm) => arm.name);
  const runs = last ? last.runs : verification.runs;
  arms.forEach((arm, place) => {
    const measured = runs.filter((run) => run.arm === place).sort((a, b) => a.run - b.run).flatMap((run) => run.blocks);
    for (const [side, name] of [["experiment", arm], ["control", `control beside ${arm}`]]) {
      let sum = 0;
      const values = measured.map((block) => (sum += lookup(block[side], metric) ?? 0));
      // The sides of one arm share a colour, and the control is dotted.
      all.push({ values, name, place, dash: side === "control" ? [3, 4] : [] });
    }
  });
  const unit = inUnit(JSON.parse(element.dataset.unit), Math.max(0, ...all.flatMap((it) => it.values.slice(-1)).map(Math.abs)));
  const longest = Math.max(0, ...all.map((it) => it.values.length));
  if (!longest) { element.textContent = "No run has ended yet."; return; }
  const x = Array.from({ length: longest }, (_, index) => index + 1);
  draw(element, {
    scales: { x: { time: false } },
    axes: [counts("Block"), axis(`Sum of ${unit.label}`)],
    series: [{ label: "Block", value: told() }, ...all.map((it) => line(it.name, it.place, { dash: it.dash, width: it.dash.length ? 1.5 : 2.5, value: told(unit.text) }))],
  }, [x, ...all.map((it) => x.map((_, index) => unit.of(it.values[index] ?? null)))]);
}

/** From when to when each evaluation ran: a lane for each host. */
export function runs(id, points, unit) {
  const element = document.getElementById("plot-runs");
  const known = points.number.map((_, index) => index).filter((index) => points.began_ms[index] !== null);
  document.getElementById("runs").hidden = !known.length;
  if (!known.length) return;
  const own = "this host";
  const hosts = [...new Set(known.map((index) => points.host[index] ?? own))].sort();
  const bars = known.map((index) => ({
    number: points.number[index], outcome: points.outcome[index], lane: hosts.indexOf(points.host[index] ?? own),
    from: points.began_ms[index] / 1000, to: points.began_ms[index] / 1000 + points.took_s[index],
    score: points.score[index] === null ? "" : `: ${unit.text(unit.of(points.score[index]))}`,
  }));
  const [first, last] = [Math.min(...bars.map((it) => it.from)), Math.max(...bars.map((it) => it.to))];
  const pad = 0.01 * (last - first || 1);
  const colour = inks();
  const plot = draw(element, {
    height: 90 + 34 * Math.min(12, hosts.length),
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: true, range: () => [first - pad, last + pad] }, y: { range: () => [-0.6, hosts.length - 0.4] } },
    axes: [moments(), axis("", {
      splits: () => hosts.map((_, lane) => lane), filter: (_, ticks) => ticks, values: (_, ticks) => ticks.map((lane) => hosts[lane] ?? ""), grid: { show: false },
    })],
    series: [{}, { stroke: "transparent", points: { show: false } }],
    hooks: {
      draw: [(plot) => inside(plot, (context) => {
        for (const it of bars) {
          const [left, right] = [it.from, it.to].map((at) => plot.valToPos(at, "x", true));
          const [top, bottom] = [it.lane + 0.35, it.lane - 0.35].map((at) => plot.valToPos(at, "y", true));
          context.fillStyle = colour(it.outcome);
          context.globalAlpha = 0.85;
          // A gap of a pixel tells one from the next, where there is room for it.
          context.fillRect(left, top, Math.max(1, right - left - (right - left > 4 ? 1 : 0)), bottom - top);
        }
      })],
    },
  }, [[first, last], [null, null]]);
  legend(element, { ...points, score: points.score.map(() => 0) });
  pointed(element, (left, top) => {
    const over = plot.over.getBoundingClientRect();
    const frame = element.getBoundingClientRect();
    const [x, y] = [left - (over.left - frame.left), top - (over.top - frame.top)];
    if (x < 0 || x > over.width) return null;
    const lane = Math.round(plot.posToVal(y, "y"));
    const [low, at, high] = [x - 3, x, x + 3].map((place) => plot.posToVal(place, "x"));
    const it = bars.find((bar) => bar.lane === lane && bar.from <= at && bar.to >= at) || bars.find((bar) => bar.lane === lane && bar.from <= high && bar.to >= low);
    return it && { text: `Evaluation ${it.number}, ${it.outcome}${it.score}, took ${duration(it.to - it.from)}`, href: `/experiments/${id}/evaluations/${it.number}` };
  });
}

const percent = (log) => (log === null ? null : 100 * Math.expm1(log));

export async function gain(element) {
  const id = element.closest("[data-experiment]").dataset.experiment;
  const rounds = await read(`/api/v1/experiments/${id}/rounds`);
  const sign = rounds.goal === "maximise" ? -1 : 1;
  const at = rounds.at_ms.map((ms) => ms / 1000);
  const end = (factor) => rounds.gain.map((value, index) => (value === null ? null : percent(sign * (value + factor * 1.96 * (rounds.gain_sd[index] || 0)))));
  // A round before a promotion compares the control with itself: it shows the noise.
  const [mean, low, high] = [end(0), end(-sign), end(sign)];
  if (!at.length) { element.textContent = "No round has ended yet."; return; }
  const visible = range([...mean, ...low, ...high], [0]);
  const changes = rounds.entries.filter((entry) => entry.kind === "promoted" || entry.kind === "rollback")
    .map((entry) => ({ at: Date.parse(entry.at) / 1000, isRollback: entry.kind === "rollback", text: `${entry.kind}: ${entry.text}` }));
  // Another control, or none: what is in force was compared with something else before.
  const turns = at.slice(1).filter((_, index) => rounds.of_promoted[index] !== rounds.of_promoted[index + 1]);
  const parts = [...changes.map((it) => it.at), ...turns];
  const ends = [at[0], at[at.length - 1], ...changes.map((it) => it.at)];
  const span = [Math.min(...ends), Math.max(...ends)];
  const pad = 0.02 * (span[1] - span[0] || 60);
  const plot = draw(element, {
    legend: { live: true },
    scales: { x: { time: true, range: () => [span[0] - pad, span[1] + pad] }, y: { range: () => visible } },
    axes: [moments(), axis("% against control")],
    series: [
      { label: "Round", value: told((at_s) => moment(1000 * at_s)) },
      { label: "change", stroke: ink("--accent"), width: 2, points: { show: at.length < 200, size: 5 }, value: told(signed) },
      { label: "95 % from", stroke: "transparent", points: { show: false }, value: told(signed) },
      { label: "to", stroke: "transparent", points: { show: false }, value: told(signed) },
    ],
    bands: [{ series: [3, 2], fill: ink("--band") }],
    hooks: {
      draw: [(plot) => inside(plot, (context) => {
        rule(plot, 0, false);
        for (const it of changes) rule(plot, it.at, true, ink(it.isRollback ? "--bad" : "--good"), []);
        rounds.is_broken.forEach((is, index) => {
          if (is) mark(context, { x: plot.valToPos(at[index], "x", true), y: plot.valToPos(mean[index], "y", true), colour: ink("--bad"), size: 5, kind: "cross" });
        });
      })],
    },
  }, parted([at, mean, low, high], parts));
  pointed(element, (left) => {
    const frame = plot.over.getBoundingClientRect();
    const x = left - (frame.left - element.getBoundingClientRect().left);
    const near = changes.find((it) => Math.abs(plot.valToPos(it.at, "x") - x) < 6);
    return near && { text: near.text };
  });
}

export async function evidence(element) {
  const id = element.closest("[data-experiment]").dataset.experiment;
  const { tests, names } = await read(`/api/v1/experiments/${id}/rounds`);
  const at = [...new Set(tests.flatMap((test) => test.at_ms))].sort((a, b) => a - b);
  if (!at.length) { element.textContent = "No round has been counted yet."; return; }
  // Evidence grows by factors, and each test has its own threshold: the alarm is at 1 for all, on a scale of factors.
  const share = (test) => {
    const places = new Map(test.at_ms.map((ms, index) => [ms, Math.max(1e-6, test.evidence[index] / test.threshold)]));
    return at.map((ms) => places.get(ms) ?? null);
  };
  const all = tests.map(share);
  const known = all.flat().filter((value) => value !== null);
  const [low, high] = [Math.max(1e-6, Math.min(0.1, ...known)), Math.max(2, ...known)];
  draw(element, {
    legend: { live: true },
    scales: { x: { time: true }, y: { distr: 3, range: () => [low / 1.5, high * 1.5] } },
    axes: [moments(), axis("Evidence (alarm at 1)", {
      splits: () => [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 10, 100].filter((tick) => tick >= low / 1.5 && tick <= high * 1.5),
      values: (_, ticks) => ticks.map((tick) => (tick < 1e-3 ? `10⁻${"⁰¹²³⁴⁵⁶"[Math.round(-Math.log10(tick))]}` : String(tick))),
      filter: (_, ticks) => ticks,
    })],
    series: [
      { label: "Round", value: told((at_s) => moment(1000 * at_s)) },
      ...tests.map((test, place) => line(names[test.series], place, { width: width(place, tests.length), spanGaps: true, value: told(), points: { show: at.length < 60, size: 5 } })),
    ],
    hooks: { draw: [(plot) => inside(plot, () => rule(plot, 1, false, ink("--bad")))] },
  }, [at.map((ms) => ms / 1000), ...all]);
}

export async function compared(element) {
  const ids = element.dataset.ids.split(",");
  const all = [];
  for (const id of ids) {
    const [points, shown] = [await read(`/api/v1/experiments/${id}/points`), await read(`/api/v1/experiments/${id}`)];
    const unit = scoreReader(points);
    let best = null;
    const values = new Map();
    points.number.forEach((number, index) => {
      const score = points.score[index];
      if (points.outcome[index] === "completed" && score !== null && (best === null || score < best)) best = score;
      values.set(number, unit.of(best));
    });
    all.push({ id, name: `${id}: ${shown.name}`, unit, values });
  }
  const x = [...new Set(all.flatMap((it) => [...it.values.keys()]))].sort((a, b) => a - b);
  const hasRatio = all.some((it) => it.unit.control !== null);
  const label = all.every((it) => it.unit.label === all[0].unit.label) ? all[0].unit.label : "% against each experiment's control";
  // Each line is to be seen, however far it lies from the others.
  const ends = all.map((it) => [...it.values.values()].pop());
  draw(element, {
    height: 320,
    scales: { x: { time: false }, y: { range: () => range(all.flatMap((it) => [...it.values.values()]), hasRatio ? [0, ...ends] : ends) } },
    axes: [counts("Evaluation"), axis(label)],
    series: [{ label: "Evaluation", value: told() }, ...all.map((it, place) => line(it.name, place, { width: width(place, all.length), paths: uPlot.paths.stepped({ align: 1 }), value: told(it.unit.text) }))],
    hooks: {
      draw: [(plot) => inside(plot, (context, box) => {
        if (hasRatio) rule(plot, 0, false);
        // Who does not tell the colours apart reads the number at the end of each line.
        const ratio = devicePixelRatio || 1;
        context.font = `${13 * ratio}px system-ui, sans-serif`;
        context.textAlign = "right";
        all.forEach((it, place) => {
          const [number, best] = [...it.values].filter(([, value]) => value !== null).pop() ?? [];
          if (number === undefined) return;
          const y = plot.valToPos(best, "y", true) - 8 * ratio;
          context.fillStyle = ink(lines[place % lines.length]);
          context.fillText(it.id, plot.valToPos(number, "x", true) - 3 * ratio, Math.max(box.top + 13 * ratio, y));
        });
      })],
    },
  }, [x, ...all.map((it) => x.map((number) => it.values.get(number) ?? null))]);
}
