// The one stream of a browser: a shared worker listens for all tabs and tells each of them.
"use strict";

const ports = new Set();
let source = null;
let last = null;

function listen() {
  if (source) return;
  source = new EventSource("/api/v1/events");
  source.addEventListener("changed", (event) => {
    last = JSON.parse(event.data);
    for (const port of ports) port.postMessage({ state: last });
  });
  source.addEventListener("ended", refused);
  source.onopen = () => { for (const port of ports) port.postMessage({ isThere: true }); };
  source.onerror = () => {
    // The browser connects again by itself; until then the pages say that nobody tells them anything.
    if (source.readyState === EventSource.CLOSED) refused();
    else for (const port of ports) port.postMessage({ isThere: false });
  };
}

/** The stream is over, such as after a sign-out. A tab that is signed out says "bye"; for others another stream begins. */
function refused() {
  source.close();
  source = null;
  last = null;
  for (const port of ports) port.postMessage({ isRefused: true });
  setTimeout(() => { if (ports.size) listen(); }, 5000);
}

onconnect = (event) => {
  const port = event.ports[0];
  ports.add(port);
  port.onmessage = () => {
    ports.delete(port);
    if (ports.size === 0 && source) { source.close(); source = null; last = null; }
  };
  listen();
  // The first message says how things are; a tab reads itself again at each later one.
  if (last) port.postMessage({ state: last });
  port.start();
};
