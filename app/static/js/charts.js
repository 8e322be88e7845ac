// Finds the charts of a page, draws them, and keeps those of an active run up to date.

import { Chart } from "./chart.js";
import { followMetrics } from "./metrics.js";
import { followResources } from "./resources.js";

const charts = new Map();

/** The interactive chart of a holder, drawn on the first call; null if there is nothing to draw. */
export function chartOf(holder) {
  if (!charts.has(holder)) {
    if (!holder?.dataset.chart || typeof uPlot === "undefined") return null;
    charts.set(holder, new Chart(holder, JSON.parse(holder.dataset.chart)));
  }
  return charts.get(holder);
}

function startAll(root) {
  if (root.matches?.("[data-chart]")) chartOf(root);
  root.querySelectorAll?.("[data-chart]").forEach(chartOf);
}

startAll(document);
new MutationObserver((changes) => {
  for (const change of changes) change.addedNodes.forEach(startAll);
}).observe(document.body, { childList: true, subtree: true });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const chart of charts.values()) chart.repaint(); });

followMetrics(document.querySelector("[data-metrics], [data-sources]"), chartOf);
followResources(document.querySelector("[data-resources]"), chartOf);
