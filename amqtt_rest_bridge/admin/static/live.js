// The one event stream of a browser: runs as a SharedWorker for all its pages or, where there is none, within a page.
// A browser opens six connections to a host, so pages must not have one each; those that are not seen need none.
"use strict";

const RETRY_MS = 5000;
const pages = new Map(); // those that are seen: the port of each, and the route whose calls it shows, or null
const rows = new Map(); // the newest cells of each route, for pages that come later
let newest = null; // the rest of what pages show of all routes
let state = "connecting";
let sources = []; // the stream, and for a moment a newer one that carries calls of more routes
let held = []; // calls that the newer one brings as well
let timer = 0;

function serve(page) {
  page.onmessage = ({ data }) => {
    pages.delete(page);
    if (data.seen) {
      pages.set(page, data.route);
      page.postMessage({ state });
      if (newest) page.postMessage({ routes: { ...newest, rows: [...rows.values()] } });
    }
    follow();
  };
}

function send(message) {
  for (const page of pages.keys()) page.postMessage(message);
}

function tell(text) {
  state = text;
  send({ state });
}

function follow() {
  const wanted = [...new Set(pages.values())].filter((route) => route !== null);
  if (!pages.size) stop("connecting");
  else if (!sources.length) open(wanted);
  else if (sources.length === 1 && !wanted.every((route) => sources[0].routes.includes(route))) open(wanted);
}

function stop(text) {
  clearTimeout(timer);
  keep(null);
  rows.clear();
  newest = null;
  tell(text);
}

function keep(one) {
  for (const source of sources) if (source !== one) source.close();
  sources = sources.filter((source) => source === one);
  held = [];
}

function open(wanted) {
  clearTimeout(timer);
  const source = new EventSource(`/api/changes?${new URLSearchParams(wanted.map((route) => ["route", route]))}`);
  source.routes = wanted;
  sources.push(source);
  source.onopen = () => {
    source.last = 0; // number of its last call; another bridge process counts from the beginning
    source.older = { routes: [], last: 0 }; // the stream that it took over from
    if (source === sources.at(-1)) tell("live");
  };
  source.onerror = () => {
    if (source !== sources.at(-1)) return;
    const hasRoom = sources.length > 1; // once the older one has been closed
    keep(source);
    if (source.readyState !== EventSource.CLOSED) return tell("connection lost, trying again");
    stop("not live, trying again"); // refused (503: too many viewers): an EventSource never tries again by itself
    timer = setTimeout(follow, hasRoom ? 0 : RETRY_MS);
  };
  source.addEventListener("routes", (event) => {
    if (source !== sources[0]) replace(source);
    takeRoutes(JSON.parse(event.data));
  });
  source.addEventListener("message", (event) => takeCall(source, Number(event.lastEventId), JSON.parse(event.data)));
}

// The first rows of the newer stream come some time after it was opened, so what the older one alone had to bring has come.
function replace(source) {
  // One that is not open says nothing of the numbers of this one, which may come from another bridge process.
  const { routes, last } = sources[0].readyState === EventSource.OPEN ? sources[0] : { routes: [], last: 0 };
  const missed = held.filter(({ number }) => number > last);
  source.older = { routes, last };
  keep(source);
  for (const { call } of missed) showCall(call);
  follow();
}

function takeCall(source, number, call) {
  if (source !== sources[0] && sources[0].routes.includes(call.route)) {
    held.push({ number, call });
  } else if (number > source.older.last || !source.older.routes.includes(call.route)) { // the older one was ahead
    source.last = number;
    showCall(call);
  }
}

function showCall(call) {
  for (const [page, route] of pages) if (route === call.route) page.postMessage({ call });
}

function takeRoutes(changed) {
  const { rows: cells, ...rest } = changed;
  newest = rest;
  for (const row of cells) rows.set(row.name, row);
  const names = new Set(rest.names);
  for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
  send({ routes: changed });
}

addEventListener("connect", (event) => serve(event.ports[0]));
globalThis.serve = serve;
