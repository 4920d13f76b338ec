// A part of a chart, larger, and a chart as a picture.
// A drag selects the part. The button below the chart, or a double click, shows all of it again.

const tools = new Map();

/** A row of buttons below a chart. It is put there again where the page around the chart was replaced. */
function row(element) {
  let row = tools.get(element);
  if (!row) {
    row = document.createElement("div");
    row.className = "tools";
    tools.set(element, row);
  }
  if (!row.isConnected) element.after(row);
  return row;
}

function button(parent, name, text, work) {
  let it = parent.querySelector(`.${name}`);
  if (!it) {
    it = document.createElement("button");
    it.type = "button";
    it.className = `tool ${name}`;
    it.textContent = text;
    parent.append(it);
  }
  it.onclick = work;
  return it;
}

/** Offers to save what a canvas shows. The picture has the paper's colour behind it. */
export function savable(element, canvas) {
  const name = (element.id || element.parentElement.id || element.firstElementChild?.id || "chart").replace(/^plot-/, "");
  button(row(element), "save", "Save picture", () => {
    const shown = canvas();
    const copy = document.createElement("canvas");
    [copy.width, copy.height] = [shown.width, shown.height];
    const context = copy.getContext("2d");
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--paper");
    context.fillRect(0, 0, copy.width, copy.height);
    context.drawImage(shown, 0, 0);
    copy.toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `${name}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  });
}

/** The options of a plot whose scales show the selected part of its element, where one is selected. */
export function zoomed(element, options, data) {
  const scales = { ...options.scales };
  const all = { x: () => ends(data[0]), y: (_, low, high) => (low === null ? [null, null] : uPlot.rangeNum(low, high, 0.1, true)) };
  for (const key of ["x", "y"]) {
    const own = scales[key]?.range || all[key];
    scales[key] = { ...scales[key], range: (plot, low, high, name) => element.selection?.[key] || own(plot, low, high, name) };
  }
  const cursor = { ...options.cursor, drag: { x: false, y: false, setScale: false } };
  return { ...options, scales, cursor };
}

function ends(values) {
  if (!values.length) return [null, null];
  const [low, high] = [values[0], values[values.length - 1]];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

/** Lets a drag over a plot select a part of it. */
export function zoomable(element, plot) {
  const isFirst = !element.zoom;
  const show = (part) => {
    element.selection = part;
    button(row(element), "all", "Show all", () => show(null)).hidden = !part;
    element.zoom.plot.redraw(true, true);
  };
  element.zoom = { plot, show };
  savable(element, () => element.zoom.plot.ctx.canvas);
  button(row(element), "all", "Show all", () => show(null)).hidden = !element.selection;
  if (isFirst) dragged(element);
}

function dragged(element) {
  const box = document.createElement("div");
  box.className = "part";
  let drag = null;
  const inside = (event) => {
    const over = element.zoom.plot.over.getBoundingClientRect();
    const bound = (value, most) => Math.min(most, Math.max(0, value));
    return { over, x: bound(event.clientX - over.left, over.width), y: bound(event.clientY - over.top, over.height) };
  };
  /** Which axes a drag is along: a drag that is nearly straight leaves the other axis alone. */
  const along = (to) => {
    const [wide, tall] = [Math.abs(to.x - drag.from.x), Math.abs(to.y - drag.from.y)];
    return { x: wide > 10 || (wide > 6 && wide > tall), y: tall > 10 };
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !element.zoom.plot.over.contains(event.target)) return;
    drag = { from: inside(event), isMoving: false };
  });
  element.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const to = inside(event);
    const axes = along(to);
    if (!drag.isMoving && !axes.x && !axes.y) return;
    if (!drag.isMoving) { drag.isMoving = true; element.setPointerCapture(event.pointerId); element.append(box); }
    const frame = element.getBoundingClientRect();
    const [left, top] = [to.over.left - frame.left, to.over.top - frame.top];
    const [x, wide] = axes.x ? [Math.min(drag.from.x, to.x), Math.abs(to.x - drag.from.x)] : [0, to.over.width];
    const [y, tall] = axes.y ? [Math.min(drag.from.y, to.y), Math.abs(to.y - drag.from.y)] : [0, to.over.height];
    Object.assign(box.style, { left: `${left + x}px`, top: `${top + y}px`, width: `${wide}px`, height: `${tall}px` });
  });
  const end = (event) => {
    if (!drag?.isMoving) { drag = null; return; }
    const [from, to, axes] = [drag.from, inside(event), along(inside(event))];
    drag = null;
    box.remove();
    // The click that ends a drag is none.
    element.isAfterDrag = true;
    setTimeout(() => { element.isAfterDrag = false; });
    if (event.type === "pointercancel" || !(axes.x || axes.y)) return;
    const { plot, show } = element.zoom;
    const part = { ...element.selection };
    if (axes.x) part.x = [plot.posToVal(Math.min(from.x, to.x), "x"), plot.posToVal(Math.max(from.x, to.x), "x")];
    if (axes.y) part.y = [plot.posToVal(Math.max(from.y, to.y), "y"), plot.posToVal(Math.min(from.y, to.y), "y")];
    show(part);
  };
  element.addEventListener("pointerup", end);
  element.addEventListener("pointercancel", end);
  element.addEventListener("click", (event) => { if (element.isAfterDrag) event.stopImmediatePropagation(); }, true);
  element.addEventListener("dblclick", () => { if (element.selection) element.zoom.show(null); });
}
