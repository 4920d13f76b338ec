// What every page does: buttons and forms that change something, and parts that are read again when something changed.
"use strict";

const csrf = document.querySelector("meta[name=csrf]").content;
const complaint = document.getElementById("complaint");

function complain(text) {
  complaint.textContent = text;
  complaint.hidden = !text;
  if (text) complaint.scrollIntoView({ block: "nearest" });
}

/** Asks for a change and returns the answer, or complains and returns nothing. */
async function change(method, url, body) {
  complain("");
  const headers = { "x-slackline-csrf": csrf };
  if (body !== undefined) headers["content-type"] = "application/json";
  try {
    const response = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const text = await response.text();
    const answer = text ? JSON.parse(text) : {};
    if (response.ok) return answer;
    complain(answer.line ? `line ${answer.line}: ${answer.key}: ${answer.detail}` : answer.detail || response.statusText);
  } catch (error) {
    complain(`The server does not answer: ${error.message}`);
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-post], [data-delete]");
  if (!button) return;
  if (button.dataset.sure && !window.confirm(button.dataset.sure)) return;
  button.disabled = true;
  const isDelete = "delete" in button.dataset;
  const done = await change(isDelete ? "DELETE" : "POST", isDelete ? button.dataset.delete : button.dataset.post);
  button.disabled = false;
  if (!done) return;
  if (isDelete) location.href = "/";
  else if (button.dataset.go === "experiment") location.href = `/experiments/${done.id}`;
  else refresh();
});

/** A field as the kind of value that it looks like. */
function scalar(text) {
  if (text === "true" || text === "false") return text === "true";
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("[data-form]");
  if (!form) return;
  event.preventDefault();
  const filled = [...new FormData(form)].filter(([, text]) => text.trim() !== "");
  const values = Object.fromEntries(filled.map(([name, text]) => [name, scalar(text.trim())]));
  const body = form.dataset.shape === "configuration" ? { configuration: values } : values;
  if (await change(form.dataset.method || "POST", form.dataset.form, body)) {
    if (form.dataset.shape === "configuration") form.reset();
    refresh();
  }
});

let isReading = false;
let isStale = false;

/** Reads this page again and replaces what is live in it. The focus stays where it is. */
async function refresh() {
  if (isReading) { isStale = true; return; }
  isReading = true;
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" } });
    if (response.ok && !response.redirected) {
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const next = fresh.getElementById(part.id);
        if (!next || next.innerHTML === part.innerHTML) continue;
        const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
        const left = part.querySelector(".scroll")?.scrollLeft ?? 0;
        part.innerHTML = next.innerHTML;
        const scroll = part.querySelector(".scroll");
        if (scroll) scroll.scrollLeft = left;
        if (focused) document.getElementById(focused)?.focus();
      }
      document.dispatchEvent(new Event("refreshed"));
    } else if (response.status === 404) {
      complain("This is not there any more.");
    }
  } catch { /* The stream tells when the server is back. */ }
  isReading = false;
  // No more than one reading a second: a page costs its server more than an event.
  if (isStale) { isStale = false; setTimeout(refresh, 1000); }
}

/** Something changed on the server, as all tabs of a browser are told by one stream. */
function changed(isFirst, state) {
  if (!isFirst || state.trouble) refresh();
}

if (document.querySelector("[data-live]")) {
  if ("SharedWorker" in window) {
    // A browser opens six connections to a host over HTTP/1.1: with a stream for each tab, the seventh would hang.
    const worker = new SharedWorker("/assets/events.js");
    let isFirst = true;
    worker.port.onmessage = (event) => {
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
      if (document.hidden) return;
      try {
        const text = await (await fetch("/api/v1/status")).text();
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
