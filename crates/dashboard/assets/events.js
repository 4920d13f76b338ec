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
  source.onopen = () => { for (const port of ports) port.postMessage({ isThere: true }); };
  source.onerror = () => {
    // The browser connects again by itself; until then the pages say that nobody tells them anything.
    for (const port of ports) port.postMessage({ isThere: false });
    // A refusal, such as after a sign-out, ends a stream for good: a later tab begins another one.
    if (source.readyState === EventSource.CLOSED) {
      source = null;
      last = null;
      if (ports.size) setTimeout(() => { if (ports.size) listen(); }, 5000);
    }
  };
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
