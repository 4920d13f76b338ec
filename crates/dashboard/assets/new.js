// A specification is checked while it is typed; its error is shown at its line.
import { change } from "./live.js";

const spec = document.getElementById("spec");
const lines = document.getElementById("lines");
const verdict = document.getElementById("verdict");
const create = document.getElementById("create");
const field = (id) => document.getElementById(id);
let wrongLine = 0;
let asked = 0;

function number() {
  const count = spec.value.split("\n").length;
  lines.textContent = "";
  for (let line = 1; line <= count; line++) {
    const item = document.createElement(line === wrongLine ? "b" : "span");
    item.textContent = line;
    lines.append(item, "\n");
  }
  lines.scrollTop = spec.scrollTop;
}

function given() {
  const body = { spec: spec.value, format: field("format").value };
  if (field("dir").value) body.dir = field("dir").value;
  if (field("name").value) body.name = field("name").value;
  return body;
}

function say(text, kind, line, warnings = []) {
  verdict.textContent = text;
  field("remarks").replaceChildren(...warnings.map((warning) => {
    const item = document.createElement("li");
    item.className = "remark";
    item.textContent = `Warning: ${warning}`;
    return item;
  }));
  verdict.className = kind;
  wrongLine = line || 0;
  spec.setAttribute("aria-invalid", kind === "wrong");
  if (create) create.disabled = kind !== "right";
  number();
}

async function check() {
  const mine = ++asked;
  if (!spec.value.trim()) return say("Nothing to check yet.", "", 0);
  const answer = await change("POST", "/api/v1/specs/check", given());
  if (!answer || mine !== asked) return;
  if (answer.ok) {
    // The check of the text alone does not know how many there are.
    const size = answer.configurations === undefined ? "" : `, ${answer.configurations ?? "a continuum of"} configurations`;
    const parameters = answer.parameters === 1 ? "1 parameter" : `${answer.parameters} parameters`;
    const takes = answer.takes ? `, ${answer.takes}` : "";
    const wrong = answer.remarks.length ? "" : " Nothing is wrong with it.";
    say(`${answer.name}: ${parameters}${size}${takes}.${wrong}`, "right", 0, answer.remarks);
  } else {
    // The error itself may name the key.
    const key = answer.key && !answer.error.includes(`\`${answer.key}\``) ? answer.key : "";
    const where = [answer.line && `Line ${answer.line}`, key].filter(Boolean).join(", ");
    const isFile = /template|files|warm_start/.test(answer.key || "");
    const from = field("dir").value || "the server's state directory";
    const hint = isFile ? ` Relative paths count from ${from}: change the directory above if the file is elsewhere.` : "";
    const error = where ? answer.error : answer.error.replace(/^./, (first) => first.toUpperCase());
    say(`${where}${where ? ": " : ""}${error}${hint && !/[.!?]$/.test(error) ? "." : ""}${hint}`, "wrong", answer.line);
  }
}

let timer;
const soon = () => { clearTimeout(timer); timer = setTimeout(check, 300); };
spec.addEventListener("input", () => { number(); if (create) create.disabled = true; soon(); });
spec.addEventListener("scroll", () => { lines.scrollTop = spec.scrollTop; });
for (const id of ["format", "name", "dir"]) field(id).addEventListener("input", soon);
field("file").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  if (!file) return;
  spec.value = await file.text();
  field("format").value = file.name.endsWith(".json") ? "json" : "toml";
  field("name").value = file.name.replace(/\.(toml|json)$/, "");
  check();
});
document.getElementById("new").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!create) return;
  create.disabled = true;
  const made = await change("POST", "/api/v1/experiments", given());
  if (made) location.href = `/experiments/${made.id}`;
  else create.disabled = false;
});
number();
