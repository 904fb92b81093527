// Keeps the pages live. Everything that comes is put in as text, never as HTML.
"use strict";

const live = document.querySelector("[data-live]");
const rows = new Map([...document.querySelectorAll("[data-route]")].map((row) => [row.dataset.route, row]));
const page = document.querySelector("[data-page=route]");
const RETRY_MS = 5000;
const MOST_CALLS = 50;
const MOST_FAILURES = 20;
let port = null; // to live.js

function tell(text) {
  live.hidden = false;
  live.textContent = text;
}

function update(row, cells) {
  for (const [name, text] of Object.entries(cells)) {
    const cell = row.querySelector(`[data-cell="${name}"]`);
    const line = row.querySelector(`[data-points="${name}"]`);
    if (line) line.setAttribute("points", text);
    if (!cell) continue;
    if (name === "label") cell.setAttribute("aria-label", text);
    else if (cell.textContent !== text) cell.textContent = text;
    if (name === "health") cell.dataset.health = text;
  }
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
    if (data.state) tell(data.state);
    if (data.routes) showRoutes(data.routes);
    if (data.call) showCall(data.call);
  };
  report(!document.hidden);
}

function report(seen) {
  port.postMessage({ seen, route: page ? page.dataset.route : null });
}

function look() {
  if (document.hidden) report(false);
  else if (page) location.reload(); // calls have been missed
  else report(true);
}

function follow() {
  tell("connecting");
  connect();
  document.addEventListener("visibilitychange", look);
  addEventListener("pagehide", () => report(false));
  addEventListener("pageshow", (event) => event.persisted && look());
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function showCall(call) {
  if (call.kind !== "retry") {
    const row = element("tr", "", "new");
    const id = element("td", "", "wide long");
    if (call.id) id.append(runLink(call.id, call.id));
    row.append(
      element("td", call.time.slice(11, 23)),
      element("td", call.event ?? "", "wide"),
      element("td", call.topic ?? "", "long"),
      element("td", `${call.method ?? ""} ${call.url ?? ""}`, "wide long"),
      element("td", `${call.status ?? ""} ${call.code ?? ""}${call.kind === "skipped" ? "skipped" : ""}`),
      element("td", call.tries ?? "", "number wide"),
      element("td", call.waited_ms ?? "", "number wide"),
      element("td", call.ms ?? "", "number"),
      id,
    );
    prepend(document.querySelector("[data-calls]"), row, MOST_CALLS);
  }
  if (call.code) {
    const failure = element("details", "", "new");
    const summary = element("summary", "");
    summary.append(
      element("time", call.time.slice(11, 23)), " ", element("code", call.code), ` ${call.topic ?? call.url ?? ""}`,
    );
    failure.append(summary, element("p", call.message ?? ""));
    if (call.hint) failure.append(element("p", call.hint, "hint"));
    const run = element("p", "Run ");
    if (call.id) run.append(runLink(call.id, call.id));
    failure.append(run);
    prepend(document.querySelector("[data-failures]"), failure, MOST_FAILURES);
    document.querySelector("[data-none]").hidden = true;
  }
}

function prepend(list, entry, most) {
  list.prepend(entry);
  while (list.children.length > most) list.lastElementChild.remove();
}

function showReasons(reasons) {
  const trouble = document.querySelector("[data-trouble]");
  if (!trouble) return;
  trouble.hidden = reasons.length === 0;
  trouble.querySelector("ul").replaceChildren(...reasons.map((reason) => element("li", reason)));
}

function showProblems(problems) {
  const section = document.querySelector("[data-problems]");
  if (!section) return;
  section.hidden = problems.length === 0;
  section.querySelector("ul").replaceChildren(...problems.map((one) => {
    const item = element("li", "");
    const first = element("p", "");
    first.append(element("span", `${one.count} ×`, "count"), " ", element("code", one.code), ` ${one.target}`);
    item.append(first, element("p", one.message));
    if (one.hint) item.append(element("p", one.hint, "hint"));
    const last = element("p", `${one.routes ? `Route ${one.routes} · ` : ""}last ${one.last} UTC`, "note");
    if (one.run) last.append(" · ", runLink(one.run, "newest run"));
    item.append(last);
    return item;
  }));
}

function runLink(run, text) {
  const link = element("a", text);
  link.href = `/runs/${encodeURIComponent(run)}`;
  return link;
}

function showUnmatched(unmatched) {
  const section = document.querySelector("[data-unmatched]");
  if (!section) return;
  section.hidden = unmatched.length === 0;
  section.querySelector("tbody").replaceChildren(...unmatched.map((one) => {
    const row = element("tr", "");
    row.append(
      element("td", one.count, "number"),
      element("td", one.request, "long"),
      element("td", one.port, "wide"),
      element("td", one.status, "wide"),
      element("td", one.nearest, "long"),
      element("td", one.last, "wide"),
    );
    return row;
  }));
}

function showRoutes({ summary, reasons, problems, unmatched, names, rows: changed }) {
  showReasons(reasons);
  showProblems(problems);
  showUnmatched(unmatched);
  const counts = document.querySelector("[data-summary]");
  if (counts && counts.textContent !== summary) counts.textContent = summary;
  for (const cells of changed) {
    const row = rows.get(cells.name);
    if (row) update(row, cells);
  }
  const same = names.length === rows.size && names.every((name) => rows.has(name));
  if (!page && !same) location.reload(); // routes have been added or removed
}

if (rows.size || document.querySelector("[data-summary]")) follow();
