// What the pages of both sites share: times that people read, copy buttons, the key `/`. Texts are put in as text.
"use strict";

const ANNOUNCED_MS = 5000;
const AGES_MS = 10_000;
const UNITS = [["second", 60], ["minute", 60], ["hour", 24]];
const ages = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
let announced = 0;

// Says a thing for a moment, also to a screen reader.
function announce(text) {
  clearTimeout(announced);
  document.getElementById("announced").textContent = text;
  announced = setTimeout(() => announce(""), ANNOUNCED_MS);
}

// `3 min ago` within a day, then the local date; without a script the time is in UTC.
function age(time) {
  let value = (time - Date.now()) / 1000;
  for (const [unit, size] of UNITS) {
    if (Math.abs(value) < size) return ages.format(Math.round(value), unit);
    value /= size;
  }
  return time.toLocaleString();
}

// The local time of the day, of another day than today with its date.
function moment(time, form) {
  if (time.toDateString() === new Date().toDateString()) return time.toLocaleTimeString([], form);
  return time.toLocaleString([], { ...form, day: "numeric", month: "short", second: undefined });
}

// A `time` with `data-age` becomes its age, any other one a local time; the pointer on it shows UTC. Texts of a drawing
// have `data-time`, and neither seconds nor a date.
function showTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime], text[data-time]")) {
    const text = element.dataset.time ?? element.getAttribute("datetime");
    const time = new Date(text);
    if (Number.isNaN(time.getTime())) continue;
    const isShort = "time" in element.dataset || "minute" in element.dataset;
    const form = { hourCycle: "h23", hour: "2-digit", minute: "2-digit", ...(isShort ? {} : { second: "2-digit" }) };
    const day = /^[A-Z]/.test(element.textContent) ? { weekday: "short" } : {};
    const clock = isShort ? time.toLocaleTimeString([], { ...form, ...day }) : moment(time, form);
    const local = "age" in element.dataset ? age(time) : clock;
    if (element.dateTime) element.title = `${text.slice(0, 19).replace("T", " ")} UTC`;
    if (element.textContent !== local) element.textContent = local;
  }
}

async function copy(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
  } catch { // no permission, or a page that came over http from another machine
    element.closest("details")?.setAttribute("open", ""); // what is folded cannot be selected
    getSelection().selectAllChildren(element);
    document.execCommand("copy");
    getSelection().removeAllRanges();
  }
  announce("Copied");
}

function showCopies(root = document) {
  for (const button of root.querySelectorAll("[data-copy]")) button.hidden = false;
}

addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(document.getElementById(button.dataset.copy));
});

addEventListener("keydown", (event) => {
  const box = document.querySelector("input[type=search]");
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping || !box) return;
  event.preventDefault();
  box.focus();
  box.select();
});

// The playground: Ctrl+Enter tries, and the place of a fault leads to it in the text.
document.querySelector("[data-playground]")?.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit();
});

addEventListener("click", (event) => {
  const place = event.target.closest("[data-place]");
  if (!place) return;
  event.preventDefault();
  const box = document.getElementById("definition");
  const [line, column] = place.dataset.place.split(":").map(Number);
  const start = box.value.split("\n").slice(0, line - 1).reduce((sum, text) => sum + text.length + 1, 0) + column - 1;
  box.focus();
  box.setSelectionRange(start, start + 1);
  box.scrollTop = (box.scrollHeight / box.value.split("\n").length) * (line - 4);
});

showTimes();
showCopies();
setInterval(() => showTimes(), AGES_MS);
