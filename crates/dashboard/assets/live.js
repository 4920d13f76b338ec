// What every page does: buttons and forms that change something, and parts that are read again when something changed.

const csrf = document.querySelector("meta[name=csrf]").content;
const complaint = document.getElementById("complaint");

function complain(text) {
  complaint.textContent = text;
  complaint.hidden = !text;
  if (text) complaint.scrollIntoView({ block: "nearest" });
}

const away = document.getElementById("away");
let worker = null;
let isSignedOut = false;

/** The server admits this page no longer: it says so alone, and asks for nothing more. */
export function signedOut() {
  if (isSignedOut) return;
  isSignedOut = true;
  worker?.port.postMessage("bye");
  away.hidden = true;
  complain("You are signed out. ");
  const link = document.createElement("a");
  link.href = `/login?next=${encodeURIComponent(location.pathname + location.search + location.hash)}`;
  link.textContent = "Sign in again.";
  complaint.append(link);
}

/** Asks the server. There is no answer for a page that is signed out: what waits for one stays as it is. */
export async function ask(url, options) {
  const response = isSignedOut ? null : await fetch(url, options);
  // A page's address leads to the form instead.
  const isForm = response?.redirected && new URL(response.url).pathname === "/login";
  if (response && response.status !== 401 && !isForm) return response;
  signedOut();
  return new Promise(() => {});
}

/** A moment in milliseconds since 1970, as the server writes it. */
export const moment = (at_ms) => `${new Date(at_ms).toISOString().slice(0, 19).replace("T", " ")} UTC`;

/** Asks for a change and returns the answer, or complains and returns nothing. */
export async function change(method, url, body) {
  if (!isSignedOut) complain("");
  const headers = { "x-slackline-csrf": csrf };
  if (body !== undefined) headers["content-type"] = "application/json";
  try {
    const response = await ask(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const text = await response.text();
    const answer = text ? JSON.parse(text) : {};
    if (response.ok) return answer;
    complain(answer.line ? `line ${answer.line}: ${answer.key}: ${answer.detail}` : answer.detail || response.statusText);
  } catch (error) {
    complain(`The server does not answer: ${error.message}`);
  }
}

const sure = document.getElementById("sure");

/** Asks before something ends or is lost. `yes` is the label of the button that does it. */
function isSure(text, yes) {
  if (!text) return Promise.resolve(true);
  document.getElementById("sure-text").textContent = text;
  document.getElementById("sure-yes").textContent = yes ?? "Yes";
  sure.returnValue = "no";
  sure.showModal();
  return new Promise((answer) => { sure.addEventListener("close", () => answer(sure.returnValue === "yes"), { once: true }); });
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-post], [data-delete]");
  if (!button || !(await isSure(button.dataset.sure, button.dataset.yes))) return;
  button.disabled = true;
  const isDelete = "delete" in button.dataset;
  const body = button.dataset.body ? JSON.parse(button.dataset.body) : undefined;
  const done = await change(isDelete ? "DELETE" : "POST", isDelete ? button.dataset.delete : button.dataset.post, body);
  button.disabled = false;
  if (!done) return;
  if (isDelete) location.href = "/";
  else if (button.dataset.go === "experiment") location.href = `/experiments/${done.id}`;
  else if (button.dataset.done) {
    const said = document.getElementById("done");
    said.textContent = button.dataset.done;
    said.hidden = false;
  } else refresh();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  // The label of a second click within the time is no label of its own.
  const label = (button.dataset.label ??= button.textContent);
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copying failed";
  }
  setTimeout(() => { button.textContent = label; }, 2000);
});

/** Says that a table is wider than its place, and towards which side it goes on. */
function hint(scroll) {
  const room = scroll.scrollWidth - scroll.clientWidth;
  scroll.classList.toggle("is-wide", room > 1);
  scroll.classList.toggle("is-at-end", scroll.scrollLeft > 0 && scroll.scrollLeft >= room - 1);
}
document.addEventListener("scroll", (event) => { if (event.target.classList?.contains("scroll")) hint(event.target); }, { capture: true, passive: true });
// What is in it may be filled, or get another size, later.
const sizes = new ResizeObserver((entries) => { for (const it of entries) hint(it.target.closest(".scroll") ?? it.target); });

/** What only scripts can do is shown where there are scripts; moments are told again as time goes by. */
function dress() {
  for (const it of document.querySelectorAll(".scroll, .scroll > *")) sizes.observe(it);
  // The clipboard is there on https and on loopback only.
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
  for (const it of document.querySelectorAll("[data-since]")) {
    const passed = (Date.now() - Date.parse(it.dataset.since)) / 1000;
    const [one, unit] = passed < 3600 ? [60, "min"] : passed < 172800 ? [3600, "h"] : [86400, "days"];
    const text = passed < 60 ? "just now" : `${Math.floor(passed / one)} ${unit} ago`;
    if (passed >= 0 && it.textContent !== text) it.textContent = text;
  }
}
for (const link of document.querySelectorAll("header a:not(.brand)")) {
  const isBelow = link.pathname === "/" && location.pathname.startsWith("/experiments/");
  if (link.pathname === location.pathname || isBelow) link.setAttribute("aria-current", "page");
}
dress();
setInterval(dress, 20000);

/** A field as the kind of value that it looks like. */
function scalar(text) {
  if (text === "true" || text === "false") return text === "true";
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** A budget in words. */
const budget = (evaluations, minutes) => `${evaluations} evaluation${Number(evaluations) === 1 ? "" : "s"}${minutes ? ` and ${minutes} minutes of measuring` : " without a time limit"}`;

/** Says below the form of a budget what it was and what it is now. */
function say(form, answer) {
  const { evaluations, wall_time_min } = form.elements;
  const minutes = answer.wall_time_min ?? "";
  const said = form.querySelector("[data-said]");
  said.textContent = `The budget is now ${budget(answer.budget, minutes)}. It was ${budget(evaluations.defaultValue, wall_time_min.defaultValue)}.`;
  said.hidden = false;
  evaluations.defaultValue = String(answer.budget);
  wall_time_min.defaultValue = String(minutes);
}

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("[data-form]");
  if (!form) return;
  event.preventDefault();
  const filled = [...new FormData(form)].filter(([, text]) => text.trim() !== "");
  const values = Object.fromEntries(filled.map(([name, text]) => [name, scalar(text.trim())]));
  const body = form.dataset.shape === "configuration" ? { configuration: values }
    : form.dataset.shape === "note" ? { text: form.elements.text.value }
      // The field had the present limit: who has emptied it wants none.
      : form.dataset.shape === "budget" && !("wall_time_min" in values) ? { ...values, no_wall_time: true } : values;
  const answer = await change(form.dataset.method || "POST", form.dataset.form, body);
  if (answer) {
    if (form.dataset.shape === "budget") say(form, answer);
    if (form.dataset.shape === "configuration") form.reset();
    if (form.dataset.shape === "note") form.closest("details").open = false;
    refresh();
  }
});

let isReading = false;
let isStale = false;
let heard = new Date();

/** The server answered, or did not: a page must not look fresh while nobody tells it anything. */
function hear(isThere) {
  if (isSignedOut) return false;
  if (isThere) heard = new Date();
  const wasAway = !away.hidden;
  away.hidden = isThere;
  if (!isThere) away.textContent = `The server does not answer. This page shows the state of ${moment(heard)}. It is updated when the server answers again.`;
  return wasAway && isThere;
}

/** Puts the parts of a page that are live in the place of what is shown. The focus stays where it is. */
function replace(fresh) {
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(part.id);
    if (!next || next.innerHTML === part.fresh) continue;
    part.fresh = next.innerHTML;
    const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...part.querySelectorAll("details")].map((it) => it.open);
    const left = part.querySelector(".scroll")?.scrollLeft ?? 0;
    // A chart keeps its element: it is drawn again by itself.
    const plots = [...part.querySelectorAll(".plot")];
    part.innerHTML = next.innerHTML;
    for (const plot of plots) part.querySelector(`#${plot.id}`)?.replaceWith(plot);
    part.querySelectorAll("details").forEach((it, index) => { it.open = open[index] ?? it.open; });
    const scroll = part.querySelector(".scroll");
    if (scroll) scroll.scrollLeft = left;
    if (focused) document.getElementById(focused)?.focus();
  }
  dress();
  document.dispatchEvent(new Event("refreshed"));
}

/** Reads this page again and replaces what is live in it. */
async function refresh() {
  if (isReading) { isStale = true; return; }
  isReading = true;
  try {
    const response = await ask(location.href, { headers: { accept: "text/html" } });
    hear(true);
    if (response.ok) replace(new DOMParser().parseFromString(await response.text(), "text/html"));
    else if (response.status === 404) complain("This page no longer exists.");
  } catch { hear(false); }
  isReading = false;
  // No more than one reading a second: a page costs its server more than an event.
  if (isStale) { isStale = false; setTimeout(refresh, 1000); }
}

// While the server is away, it is asked every few seconds whether it is back.
setInterval(async () => {
  if (document.hidden || isSignedOut) return;
  const isSilent = Date.now() - heard > 15000;
  if (away.hidden && !isSilent) return;
  try {
    await fetch("/healthz", { cache: "no-store" });
    if (hear(true)) refresh();
  } catch { hear(false); }
}, 3000);

// The table: its order, filter and columns are in the address, and only the table is replaced.
const look = document.getElementById("look");
async function follow(url, isNew) {
  try {
    const response = await ask(url, { headers: { accept: "text/html" } });
    if (!response.ok) { location.href = url; return; }
    if (isNew) history.pushState(null, "", url);
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    document.getElementById("live-results").innerHTML = fresh.getElementById("live-results").innerHTML;
    look.elements.sort.value = fresh.getElementById("look").elements.sort.value;
    dress();
  } catch { hear(false); }
}
if (look) {
  const choose = () => {
    const given = new URLSearchParams([...new FormData(look)].filter(([name, value]) => value && !(name === "sort" && value === "rank")));
    follow(`${location.pathname}?${given}`, true);
  };
  let typed;
  look.addEventListener("input", (event) => { clearTimeout(typed); typed = setTimeout(choose, event.target.type === "search" ? 250 : 0); });
  look.addEventListener("submit", (event) => { event.preventDefault(); choose(); });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("#live-results thead a, #live-results .pager a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    follow(link.href, true);
  });
  addEventListener("popstate", () => follow(location.href, false));
}

/** Something changed on the server, as all tabs of a browser are told by one stream. */
function changed(isFirst, state) {
  if (!isFirst || state.trouble) refresh();
}

if (document.querySelector("[data-live]")) {
  if ("SharedWorker" in window) {
    // A browser opens six connections to a host over HTTP/1.1: with a stream for each tab, the seventh would hang.
    worker = new SharedWorker("/assets/events.js");
    let isFirst = true;
    worker.port.onmessage = (event) => {
      if (isSignedOut) return;
      // The stream was refused or has ended: the page itself says whether somebody is signed in.
      if (event.data.isRefused) { refresh(); return; }
      if ("isThere" in event.data) { if (hear(event.data.isThere)) refresh(); return; }
      if (event.data.state) hear(true);
      if (event.data.state) changed(isFirst, event.data.state);
      isFirst = false;
    };
    worker.port.start();
    addEventListener("pagehide", () => worker.port.postMessage("bye"));
    // Out of the browser's cache of pages, this tab listens again.
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  } else {
    // No stream at all: a few small requests hold up no other tab.
    let seen;
    setInterval(async () => {
      if (document.hidden || isSignedOut) return;
      try {
        const text = await (await ask("/api/v1/status")).text();
        if (seen !== undefined && text !== seen) refresh();
        seen = text;
      } catch { /* The next one may be answered. */ }
    }, 3000);
  }
}

document.getElementById("sign-out")?.addEventListener("click", async () => {
  try {
    await fetch("/logout", { method: "POST", headers: { "x-slackline-csrf": csrf }, redirect: "manual" });
    location.href = "/login";
  } catch (error) {
    complain(`The server does not answer: ${error.message}`);
  }
});
