// Searches while typing; what both sites share is in site.js. What is fetched is our own page, and texts are put in as text.
"use strict";

const PAUSE_MS = 150;
const LONGEST_SUGGESTED = 200;

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

function suggest({ suggestions }) {
  const options = suggestions.map(({ text }) => Object.assign(document.createElement("option"), { value: text }));
  document.getElementById("suggestions").replaceChildren(...options);
}

async function search() {
  const mine = ++latest;
  const address = `${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`;
  const typed = form.elements.q.value.slice(0, LONGEST_SUGGESTED);
  try {
    const [page, suggested] = await Promise.all([
      fetch(address), fetch(`${form.dataset.suggest}?${new URLSearchParams({ q: typed })}`),
    ]);
    const text = await page.text();
    const found = suggested.ok ? await suggested.json() : { suggestions: [] };
    if (mine !== latest) return; // another search has begun
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (!page.ok) return announce([...fresh.querySelectorAll("h1, h1 + p")].map((part) => part.textContent).join(". "));
    show(fresh);
    suggest(found);
    history.replaceState(null, "", address);
  } catch {
    announce("The search could not be run; press Enter to try again");
  }
}

form?.elements.q.addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(search, PAUSE_MS);
});
