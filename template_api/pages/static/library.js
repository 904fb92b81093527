// Searches while typing; what both sites share is in site.js. What is fetched is our own page, and texts are put in as text.
"use strict";

const PAUSE_MS = 150;

const form = document.querySelector("[data-search]");
let latest = 0;
let pause;

function show(fresh) {
  const opened = [...document.querySelectorAll("[data-facet][open]")].map((facet) => facet.dataset.facet);
  for (const id of ["results", "facets"]) {
    document.getElementById(id).replaceChildren(...fresh.getElementById(id).childNodes);
  }
  for (const facet of document.querySelectorAll("[data-facet]")) {
    facet.open = opened.includes(facet.dataset.facet);
  }
}

async function search() {
  const mine = ++latest;
  const address = `${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`;
  try {
    const page = await fetch(address);
    const text = await page.text();
    if (mine !== latest) return; // another search has begun
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (!page.ok) return announce([...fresh.querySelectorAll("h1, h1 + p")].map((part) => part.textContent).join(". "));
    show(fresh);
    history.replaceState(null, "", address);
  } catch {
    announce("The search could not be run; press Enter to try again");
  }
}

form?.elements.q.addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(search, PAUSE_MS);
});

// Arrow keys go from the search to the results, from one to the next, and back.
addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const stops = form ? [form.elements.q, ...document.querySelectorAll(".card h2 a")] : [];
  const next = stops[stops.indexOf(document.activeElement) + step];
  if (!step || !stops.includes(document.activeElement) || !next) return;
  event.preventDefault();
  next.focus();
});
