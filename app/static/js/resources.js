// Resource use while the run is active: the server's charts are fetched again and their numbers are taken over.

import { showValues } from "./chart-values.js";

const EVERY = 4000; // milliseconds
const LATER = 20000; // the same for a run with many ranks, whose charts are not part of the page
const ENDED = 286; // the run has ended: these are the last numbers

const titleOf = (figure) => figure.querySelector("h3").textContent;

/** Show the numbers of freshly requested charts in those on the page with the same title, and append new ones. */
export function takeOver(list, fresh, chartOf) {
  for (const figure of [...fresh.querySelectorAll("figure")]) {
    const shown = [...list.querySelectorAll("figure")].find((known) => titleOf(known) === titleOf(figure));
    const holder = figure.querySelector("[data-chart]");
    const chart = shown && chartOf(shown.querySelector("[data-chart]"));
    if (chart) {
      const data = JSON.parse(holder.dataset.chart);
      chart.update(data);
      showValues(shown, holder.dataset.title, data); // updated in place: it may be open and in use
    }
    else if (shown) shown.replaceWith(figure);
    else {
      if (document.getElementById(figure.id)) figure.removeAttribute("id"); // names that sort before it have arrived
      list.append(figure); // drawn when it becomes visible
    }
  }
}

/** Keep the charts of `section` up to date until the run has ended. */
export function followResources(section, chartOf) {
  const later = section?.dataset.later !== undefined;
  if (!section || !(later || document.querySelector("[data-run-live]"))) return;
  async function lookAgain() {
    let more = true;
    if (document.visibilityState === "visible") {
      const answer = await fetch(section.dataset.resources, { headers: { Accept: "text/html" } }).catch(() => null);
      if (answer?.ok) {
        more = answer.status !== ENDED;
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        takeOver(section.querySelector("[data-resources-list]"), fresh, chartOf);
        section.querySelector("[data-resources-none]").hidden = Boolean(section.querySelector("figure"));
      }
    }
    if (more) setTimeout(lookAgain, later ? LATER : EVERY);
  }
  setTimeout(lookAgain, later ? 0 : EVERY);
}
