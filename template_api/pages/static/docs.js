// Tries the operations of the API on this server, and keeps each curl line what would be sent. Answers are put in as text.
"use strict";

const SHOWN = 100_000; // characters of an answer

// What the fields of a form ask for: method, path with query, headers, body.
function requestOf(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  const headers = {};
  for (const field of form.querySelectorAll("[data-in]")) {
    const { name, value } = field;
    if (field.dataset.in === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
    else if (value && field.dataset.in === "query") query.append(name, value);
    else if (value) headers[name] = value;
  }
  const body = form.querySelector("[data-body]")?.value;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return { method: form.dataset.try, path: query.size ? `${path}?${query}` : path, headers, body };
}

const quoted = (text) => `'${text.replaceAll("'", `'"'"'`)}'`;

function showCurl(form) {
  const { path, headers, body } = requestOf(form);
  const parts = ["curl", quoted(form.dataset.base + path)];
  for (const [name, value] of Object.entries(headers)) parts.push("-H", quoted(`${name}: ${value}`));
  if (body !== undefined) parts.push("-d", quoted(body));
  form.querySelector("[data-curl]").textContent = parts.join(" ");
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch { // not JSON: as it is
    return text;
  }
}

async function send(form) {
  const { method, path, headers, body } = requestOf(form);
  const answer = form.querySelector("[data-answer]");
  const [status, text] = [answer.querySelector("p"), answer.querySelector("code")];
  const begun = performance.now();
  try {
    const reply = await fetch(form.dataset.root + path, { method, headers, body, cache: "no-store" });
    const whole = pretty(await reply.text());
    status.textContent = `${reply.status} ${reply.statusText}, ${Math.round(performance.now() - begun)} ms`;
    text.textContent = whole.length > SHOWN ? `${whole.slice(0, SHOWN)} …` : whole;
  } catch {
    status.textContent = "The server could not be reached";
    text.textContent = "";
  }
  answer.hidden = false;
}

for (const form of document.querySelectorAll("[data-try]")) {
  for (const field of form.querySelectorAll("[data-field]")) field.hidden = false;
  form.addEventListener("input", () => showCurl(form));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
}
