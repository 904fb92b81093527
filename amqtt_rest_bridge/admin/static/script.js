// Keeps the pages live. Cells and messages are put in as text; sections and charts are HTML of our own port, as the page is.
"use strict";

const live = document.querySelector("[data-live]");
const banner = document.querySelector("[data-banner]");
const rows = new Map([...document.querySelectorAll("[data-route]")].map((row) => [row.dataset.route, row]));
const page = document.querySelector("[data-page=route]");
const filter = document.querySelector("[data-filter]");
const drawing = document.querySelector("[data-flow]");
let drawn = null; // the names of all routes, once they are known
const RETRY_MS = 5000;
const CHART_MS = 10_000;
const RETRIED_MS = 1000;
let port = null; // to live.js
let since = null; // when the connection was lost
let isPaused = false; // by the one who looks: the page stays as it is
const held = new Map(); // sections that wait, by their id
let fresh = new Set(); // ids of runs that have ended since the list was read, and are not in it

// The state of the connection, and while there is none a banner that says since when.
function tell(text) {
  if (isPaused && text !== "paused") return;
  live.hidden = false;
  live.textContent = text;
  since = /lost|not live/.test(text) ? since ?? new Date() : text === "live" ? null : since;
  banner.hidden = since === null;
  const said = since && `Connection lost on ${since.toLocaleString()}. The page shows how things were then, and tries again by itself.`;
  if (said && banner.textContent !== said) banner.textContent = said;
}

// What keeps the page live runs in live.js: in the SharedWorker, or in a page whose browser has none.
// A page that is not seen asks for nothing.
function connect() {
  const retry = () => {
    tell("not live, trying again");
    setTimeout(connect, RETRY_MS);
  };
  if (window.SharedWorker) {
    const worker = new SharedWorker("/live.js");
    worker.onerror = retry; // the script has not come
    port = worker.port;
  } else {
    const { port1, port2 } = new MessageChannel();
    import("/live.js").then(() => serve(port1), retry);
    port = port2;
  }
  port.onmessage = ({ data }) => {
    if (isPaused) return;
    if (data.state) tell(data.state);
    if (data.routes) showRoutes(data.routes);
    if (data.call) countRun(data.call);
  };
  report(isSeen());
}

function isSeen() {
  return !document.hidden && !isPaused;
}

function report(seen) {
  port.postMessage({ seen, route: page ? page.dataset.route : null });
}

function look() {
  report(isSeen());
  if (page && isSeen()) offerRuns("Runs may have ended meanwhile: show them");
}

function pause() {
  isPaused = !isPaused;
  live.setAttribute("aria-pressed", isPaused);
  live.title = isPaused ? "Continue" : "Pause";
  tell(isPaused ? "paused" : "connecting");
  look();
}

function follow() {
  tell("connecting");
  connect();
  live.addEventListener("click", pause);
  document.addEventListener("visibilitychange", look);
  addEventListener("pagehide", () => report(false));
  addEventListener("pageshow", (event) => event.persisted && look());
}

// All routes.

function update(row, cells) {
  for (const [name, text] of Object.entries(cells)) {
    const cell = row.querySelector(`[data-cell="${name}"]`);
    row.querySelector(`[data-points="${name}"]`)?.setAttribute("d", text);
    if (!cell) continue;
    if (name === "label") cell.setAttribute("aria-label", text);
    else if (name === "error_time") showErrorTime(cell, text);
    else if (cell.textContent !== text) cell.textContent = text;
    if (name === "health") cell.dataset.health = text;
  }
}

// Numbers of a route that are zero no longer leave the fold.
function unfold() {
  const numbers = document.querySelector("[data-numbers]");
  for (const cell of document.querySelectorAll(".zeros [data-cell]"))
    if (!["0", "0.0", "-"].includes(cell.textContent)) numbers.append(cell.parentElement);
}

function showErrorTime(cell, time) {
  cell.parentElement.hidden = !time;
  if (time) cell.dateTime = time;
  showTimes(cell.parentElement);
}

// The boxes of routes in the drawing; routes that have come or gone need another one.
function showBoxes(names, changed) {
  const boxes = document.querySelectorAll("[data-box]");
  const cells = new Map(changed.map((row) => [row.name, row]));
  for (const box of boxes) {
    const row = cells.get(box.dataset.box);
    if (!row) continue;
    box.dataset.health = row.health;
    const rate = box.querySelector("[data-rate]");
    if (rate) rate.textContent = row.rate === "-" ? "" : `${row.rate}/s`;
    const title = box.querySelector("title");
    if (title) title.textContent = `${row.name} (${row.health})`;
  }
  const present = names.join("\n");
  if (drawn !== null && drawn !== present) location.reload();
  drawn = present;
}

function showRoutes({ summary, sections, names, rows: changed }) {
  for (const [id, html] of Object.entries(sections)) showSection(id, html);
  const counts = document.querySelector("[data-summary]");
  if (counts && counts.textContent !== summary) counts.textContent = summary;
  if (drawing) return showBoxes(names, changed);
  for (const cells of changed) if (rows.has(cells.name)) update(rows.get(cells.name), cells);
  if (page) unfold();
  const known = new Set(names);
  const isFiltered = filter?.elements.q.defaultValue;
  const same = (isFiltered || names.length === rows.size) && [...rows.keys()].every((name) => known.has(name));
  if (!page && !same) location.reload(); // routes have been added or removed
}

// What has other entries than before waits until the pointer and the keyboard have left it, so that nothing moves below them.
function showSection(id, html) {
  const element = document.getElementById(id);
  if (!element) return;
  const keys = (root) => [...root.querySelectorAll("[data-key]")].map((one) => one.dataset.key).join("\n");
  const body = new DOMParser().parseFromString(html, "text/html").body;
  held.delete(id);
  if (keys(body) !== keys(element) && element.matches(":hover, :focus-within")) {
    held.set(id, html);
    return;
  }
  showTimes(body);
  merge(element, body);
}

function release() {
  setTimeout(() => held.forEach((html, id) => showSection(id, html))); // once the browser knows what the pointer left
}

for (const type of ["pointerout", "focusout"]) addEventListener(type, release);

// Makes the children of one element those of another, but keeps each that is alike: a link that is clicked stays the same.
function merge(old, wanted) {
  const [before, after] = [[...old.childNodes], [...wanted.childNodes]];
  after.forEach((node, place) => {
    const own = before[place];
    if (!own) old.append(node);
    else if (own.nodeName !== node.nodeName) own.replaceWith(node);
    else if (own.nodeType !== Node.ELEMENT_NODE) own.data = node.data;
    else if (!own.isEqualNode(node)) {
      for (const { name } of [...own.attributes]) if (!node.hasAttribute(name) && name !== "open") own.removeAttribute(name);
      for (const { name, value } of node.attributes) if (own.getAttribute(name) !== value) own.setAttribute(name, value);
      merge(own, node);
    }
  });
  for (const node of before.slice(after.length)) node.remove();
}

// Shows the routes whose names have what is typed, and opens the groups that they are in.
function search() {
  const wanted = filter.elements.q.value.trim().toLowerCase();
  for (const [name, row] of rows) row.hidden = !name.toLowerCase().includes(wanted);
  const found = [...rows.values()].filter((row) => !row.hidden);
  for (const group of document.querySelectorAll(".group")) {
    group.hidden = !found.some((row) => group.contains(row));
    group.open = Boolean(wanted) && !group.hidden;
  }
  document.querySelector("[data-nothing]").hidden = found.length > 0;
}

filter?.elements.q.addEventListener("input", search);

// One route: what is opened stays where it is, new runs are only counted.

function countRun(call) {
  if (call.kind === "retry" || isListed(call.id)) return;
  fresh.add(call.id);
  offerFresh();
}

function isListed(id) {
  return document.querySelector(`[data-run="${CSS.escape(id)}"]`) !== null;
}

function offerFresh() {
  offerRuns(`${fresh.size} new ${fresh.size === 1 ? "run" : "runs"}: show`);
}

function offerRuns(text) {
  const button = document.querySelector("[data-fresh]");
  button.hidden = false;
  button.textContent = text;
}

async function load(address) {
  const answer = await fetch(address);
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

async function showRuns({ currentTarget: button }) {
  const list = document.getElementById("list");
  const opened = new Set([...list.querySelectorAll("[open]")].map((run) => run.dataset.run));
  const before = fresh;
  fresh = new Set(); // those that end from now on may be too late for the list
  const shown = (await load(location.href).catch(() => null))?.getElementById("list");
  if (!shown) {
    fresh = new Set([...before, ...fresh]);
    return announce("The runs could not be read; try again");
  }
  showTimes(shown);
  for (const run of shown.children) run.open = opened.has(run.dataset.run);
  list.replaceChildren(...shown.childNodes);
  for (const id of fresh) if (isListed(id)) fresh.delete(id);
  button.hidden = true;
  if (fresh.size) offerFresh();
}

async function showChart() {
  const chart = document.getElementById("chart");
  if (!isSeen() || since) return;
  const shown = (await load(chart.dataset.chart).catch(() => null))?.getElementById("chart");
  if (!shown) return;
  showTimes(shown);
  merge(chart, shown);
}

// What has not ended yet: a run, whose page is loaded again, and retries, whose lines are replaced by what they are now.
async function showRetries(pause) {
  const open = document.querySelectorAll("[data-open]");
  if (!open.length) return;
  const address = new URL(location.href);
  address.searchParams.set("all", ""); // newer runs push older lines out of the list
  const now = document.hidden ? null : await load(address).catch(() => null);
  if (now && document.querySelector("[data-open=run]")) {
    if (!now.querySelector("[data-open=run]")) location.reload();
  } else if (now) {
    for (const line of open) showRetry(line, now);
  }
  setTimeout(showRetries, pause, pause * 1.5);
}

function showRetry(line, now) {
  const run = line.closest("[data-run]")?.dataset.run;
  const shown = now.querySelector(run ? `[data-run="${CSS.escape(run)}"] .why` : "[data-retried]");
  if (shown) {
    showTimes(shown);
    line.replaceWith(shown);
  } else if (run) { // the run is not kept any more
    line.textContent = line.textContent.replace(/: retrying$/, "");
    line.removeAttribute("data-open");
  }
}

setTimeout(showRetries, RETRIED_MS, RETRIED_MS);

if (page) {
  document.querySelector("[data-fresh]").addEventListener("click", showRuns);
  setInterval(showChart, CHART_MS);
}
if (rows.size || drawing || document.querySelector("[data-summary]")) follow();
