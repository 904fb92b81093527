// The one event stream of a browser: runs as a SharedWorker for all its pages or, where there is none, within a page.
// A browser opens six connections to a host, so pages must not have one each; those that are not seen need none.
"use strict";

const RETRY_MS = 5000;
const pages = new Map(); // those that are seen: the port of each, and the route whose calls it shows, or null
const rows = new Map(); // the newest cells of each route, for pages that come later
let newest = null; // the rest of what pages show of all routes
let state = "connecting";
let sources = []; // the last one counts; those before it are read until it is open
let routes = []; // whose calls the last one carries
let last = 0; // number of the last call
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
  else if (!sources.length || !wanted.every((route) => routes.includes(route))) open(wanted);
}

function stop(text) {
  clearTimeout(timer);
  keep(null);
  rows.clear();
  newest = null;
  last = 0;
  tell(text);
}

function keep(one) {
  for (const source of sources) if (source !== one) source.close();
  sources = sources.filter((source) => source === one);
}

function open(wanted) {
  clearTimeout(timer);
  const source = new EventSource(`/api/changes?${new URLSearchParams(wanted.map((route) => ["route", route]))}`);
  sources.push(source);
  routes = wanted;
  source.onopen = () => {
    if (source !== sources.at(-1)) return;
    keep(source);
    tell("live");
  };
  source.onerror = () => {
    if (source !== sources.at(-1)) return;
    last = 0; // a bridge process that was started again counts from 1
    if (source.readyState !== EventSource.CLOSED) return tell("connection lost, trying again");
    const hasRoom = sources.length > 1; // once the stream before has been closed
    stop("not live, trying again"); // refused (503: too many viewers): an EventSource never tries again by itself
    timer = setTimeout(follow, hasRoom ? 0 : RETRY_MS);
  };
  source.addEventListener("routes", (event) => takeRoutes(JSON.parse(event.data)));
  source.addEventListener("message", takeCall);
}

function takeRoutes(changed) {
  const { rows: cells, ...rest } = changed;
  newest = rest;
  for (const row of cells) rows.set(row.name, row);
  const names = new Set(rest.names);
  for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
  send({ routes: changed });
}

function takeCall(event) {
  const number = Number(event.lastEventId);
  if (number <= last) return; // the stream before has brought it
  last = number;
  const call = JSON.parse(event.data);
  for (const [page, route] of pages) if (route === call.route) page.postMessage({ call });
}

addEventListener("connect", (event) => serve(event.ports[0]));
globalThis.serve = serve;
