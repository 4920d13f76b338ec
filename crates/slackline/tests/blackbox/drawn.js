// What is drawn on the canvases of a page, for the tests of the charts.

/** Whether a pixel has a colour of the style sheet; a line's edge may be half transparent. */
function matcher(name, opaque = 100) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
  const wanted = [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16));
  return (data, at) => data[at + 3] > opaque && wanted.every((part, index) => Math.abs(data[at + index] - part) < 12);
}

/** Pixels of a colour in the canvases that a selector names. */
function pixels(selector, colour) {
  const is = matcher(colour, 200);
  let count = 0;
  for (const canvas of document.querySelectorAll(selector)) {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let at = 0; at < data.length; at += 4) if (is(data, at)) count++;
  }
  return count;
}

/** How much of a straight line through a chart has a colour. The line is at a value of the scale: upright for `x`, else across. */
function covered(chart, scale, value, colour) {
  const { plot } = document.getElementById(chart).zoom;
  const is = matcher(colour);
  const { left, top, width, height } = plot.bbox;
  const at = Math.round(plot.valToPos(value, scale, true)) - 1;
  const isUp = scale === "x";
  const [across, down] = isUp ? [3, height] : [width, 3];
  const { data } = plot.ctx.getImageData(isUp ? at : left, isUp ? top : at, across, down);
  const found = new Set();
  for (let place = 0; place < across * down; place++) {
    if (is(data, 4 * place)) found.add(isUp ? Math.floor(place / across) : place % across);
  }
  return found.size / (isUp ? height : width);
}

/** Those of some points, in values of the scales, at which a chart does not have a colour. */
function missing(chart, points, colour) {
  const { plot } = document.getElementById(chart).zoom;
  const is = matcher(colour);
  return points.filter(([x, y]) => {
    const [left, top] = [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)].map((at) => Math.round(at) - 1);
    const { data } = plot.ctx.getImageData(left, top, 3, 3);
    return !Array.from({ length: 9 }, (_, place) => is(data, 4 * place)).includes(true);
  });
}

/** Places of the map: how many with lines across and without, where a configuration is probably feasible and where not. */
function hatched() {
  const map = document.getElementById("map");
  const [box, place] = [map.getBoundingClientRect(), map.parentElement];
  const { data } = map.getContext("2d").getImageData(0, 0, map.width, map.height);
  const light = (x, y) => [0, 1, 2].reduce((sum, part) => sum + data[4 * (y * map.width + x) + part], 0);
  // A line is darker, or in the dark lighter, than what is on both sides of it.
  const isLined = (row) => [1, -1].some((sign) => row.some((value, at) => {
    const beyond = (side) => Math.max(...side.map((it) => sign * (it - value)));
    return at > 0 && at < row.length - 1 && beyond(row.slice(0, at)) > 15 && beyond(row.slice(at + 1)) > 15;
  }));
  const count = { feasible: { lined: 0, plain: 0 }, infeasible: { lined: 0, plain: 0 } };
  for (let y = 20; y < map.height - 60; y += 7) {
    for (let x = 100; x < map.width - 120; x += 13) {
      place.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y, bubbles: true }));
      const tip = place.querySelector(".tip");
      if (tip.hidden || tip.textContent.startsWith("Evaluation")) continue;
      const probability = Number(tip.textContent.match(/probability of (\d+) %/)?.[1] ?? 100);
      if (probability === 50) continue;
      const row = Array.from({ length: 10 }, (_, at) => light(x + at, y));
      count[probability < 50 ? "infeasible" : "feasible"][isLined(row) ? "lined" : "plain"]++;
    }
  }
  return count;
}

/** What the map says at the cursor, every so many pixels: each place, in pixels of the map, with its text. */
function tips(every) {
  const map = document.getElementById("map");
  const [box, place] = [map.getBoundingClientRect(), map.parentElement];
  const found = [];
  for (let top = 0; top < box.height; top += every) {
    for (let left = 0; left < box.width; left += every) {
      place.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + left, clientY: box.top + top, bubbles: true }));
      const tip = place.querySelector(".tip");
      if (!tip.hidden) found.push([left, top, tip.textContent]);
    }
  }
  return found;
}

/** Which of some places of the map have ink within so many pixels, on a screen of any sharpness. */
function inked(places, reach) {
  const map = document.getElementById("map");
  const ratio = window.devicePixelRatio;
  const is = matcher("--ink", 200);
  return places.map(([left, top]) => {
    const [x, y, side] = [left - reach, top - reach, 2 * reach].map((it) => Math.round(it * ratio));
    const { data } = map.getContext("2d").getImageData(x, y, side, side);
    return Array.from({ length: side * side }, (_, at) => is(data, 4 * at)).includes(true);
  });
}
