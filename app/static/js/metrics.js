// Charts of a run's metrics: new points while the run is active, and finer ones on zoom.

import { measured, text } from "./chart-lines.js";
import { showValues } from "./chart-values.js";
import { takeOver } from "./resources.js";

const POINTS = 400; // per line while the run is active
const FINER = 1500; // per line within a zoomed range
const PAUSE = 2000; // between two requests, in milliseconds
const LONG_PAUSE = 10000; // the same for a run with many ranks
const SETTLED = 350; // a range that is unchanged for this long is requested
const AT_ONCE = 24; // metrics in one request

function lineName(item) {
  return `${item.stage}${item.attempt > 1 ? ` attempt ${item.attempt}` : ""} rank ${item.rank}`;
}

function dataOf(items, prefix = "") {
  const count = (number) => items.reduce((sum, item) => sum + number(item), 0);
  return {
    x: [],
    x_label: "step",
    lines: items.map((item) => ({ name: prefix + lineName(item), x: item.steps, y: item.values })),
    points: count((item) => item.points),
    drawn: count((item) => item.steps.length),
  };
}

/** Request metrics by name, a few at a time; null if there is no answer. */
async function ask(address, keys, query) {
  const found = { keys: [], series: [] };
  for (let start = 0; start === 0 || start < keys.length; start += AT_ONCE) {
    const wanted = new URLSearchParams([...Object.entries(query), ...keys.slice(start, start + AT_ONCE).map((key) => ["key", key])]);
    const answer = await fetch(`${address}?${wanted}`).catch(() => null);
    if (!answer?.ok) return null;
    const document = await answer.json();
    found.keys = document.keys;
    found.series.push(...document.series);
  }
  return found;
}

const keyOf = (figure) => figure.querySelector("h3").textContent;
const holderOf = (figure) => figure.querySelector("[data-chart]");

/** Whether every line has at most one point: shown as a number, not as a chart. */
function single(data) {
  return data.lines.every((line) => new Set(line.x.filter((step, index) => line.y[index] !== null)).size < 2);
}

const rowsOf = (section, key) => [...section.querySelectorAll("[data-metrics-numbers] tbody tr")].filter((row) => key === undefined || row.dataset.key === key);

/** Show a metric as numbers: one row per line, replacing its earlier rows. */
function putNumbers(section, key, data) {
  const table = section.querySelector("[data-metrics-numbers]");
  const rows = data.lines.map((line) => {
    const row = document.createElement("tr");
    row.dataset.key = key;
    const at = Math.max(0, line.y.findIndex((value) => value !== null));
    for (const [tag, words] of [["th", key], ["td", line.name], ["td", text(line.x[at])], ["td", measured(line.y[at])]]) {
      const cell = row.appendChild(Object.assign(document.createElement(tag), { textContent: words }));
      if (tag === "th") cell.scope = "row";
    }
    row.querySelectorAll("td:nth-child(n + 3)").forEach((cell) => cell.classList.add("num"));
    return row;
  });
  const known = rowsOf(section, key);
  if (known.length) known[0].before(...rows);
  else table.querySelector("tbody").append(...rows);
  known.forEach((row) => row.remove());
}

function tellThinned(figure, data) {
  let note = figure.querySelector("figcaption .muted");
  if (!note) {
    note = Object.assign(document.createElement("p"), { className: "muted small" });
    figure.querySelector("figcaption").append(note);
  }
  const words = data.drawn < data.points ? `${data.drawn.toLocaleString("en-GB")} of ${data.points.toLocaleString("en-GB")} points, extremes kept.` : "";
  if (note.textContent !== words) note.textContent = words;
}

function frame(key, data) {
  const figure = document.createElement("figure");
  figure.className = "panel card";
  figure.append(document.createElement("figcaption"));
  figure.firstChild.append(Object.assign(document.createElement("h3"), { textContent: key }));
  const holder = document.createElement("div");
  holder.className = "chart";
  holder.dataset.title = key;
  holder.dataset.chart = JSON.stringify(data);
  for (const name of ["keys lines", "chart-box", "chart-tools", "chart-notes"]) {
    holder.append(Object.assign(document.createElement("div"), { className: name }));
  }
  const box = holder.querySelector(".chart-box");
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  figure.append(holder);
  return figure;
}

/** The source of a section's points: one run, or several whose lines begin with the run's name. */
function sourcesOf(section) {
  return section.dataset.metrics ? [{ address: section.dataset.metrics, prefix: "" }] : JSON.parse(section.dataset.sources);
}

async function finer(section, key, from, to) {
  const asked = sourcesOf(section).map(async ({ address, prefix }) => {
    const found = await ask(address, [key], { from, to, max_points: FINER });
    return found && dataOf(found.series, prefix);
  });
  const found = await Promise.all(asked);
  if (found.includes(null)) return null;
  const count = (name) => found.reduce((sum, data) => sum + data[name], 0);
  return { lines: found.flatMap((data) => data.lines), points: count("points"), drawn: count("drawn") };
}

/** Request finer points when a range of the chart is unchanged for a moment. */
function lookCloser(section, figure, chart) {
  let timer = 0;
  chart.looksCloser = (from, to) => {
    clearTimeout(timer);
    if (!(chart.data.drawn < chart.data.points)) return;
    timer = setTimeout(async () => {
      const found = await finer(section, keyOf(figure), from, to);
      const now = chart.state.zoomed;
      if (!found || now?.[0] !== from || now?.[1] !== to) return;
      chart.refine(from, to, found);
    }, SETTLED);
  };
}

function tellCount(section, names) {
  const count = section.querySelector("[data-metrics-count]");
  const find = section.dataset.find.toLowerCase();
  const matching = names.filter((name) => name.toLowerCase().includes(find)).length;
  const words = `${shownKeys(section).length} of ${names.length.toLocaleString("en-GB")} metrics${find ? `; ${matching.toLocaleString("en-GB")} match` : ""}.`;
  if (count && count.textContent !== words) count.textContent = words;
}

/** Names of the metrics on the page, charts first. */
function shownKeys(section) {
  return [...[...section.querySelectorAll("figure")].map(keyOf), ...new Set(rowsOf(section).map((row) => row.dataset.key))];
}

/** Names to draw: those shown, and new ones while there is room, in the order of a freshly opened page. */
function wanted(section, names) {
  const shown = shownKeys(section);
  const find = section.dataset.find.toLowerCase();
  const first = section.dataset.first.split(" ");
  const later = (name) => Number(!first.some((part) => name.includes(part)));
  const fresh = names.filter((name) => !shown.includes(name) && name.toLowerCase().includes(find)).sort((a, b) => later(a) - later(b));
  return [...shown, ...fresh.slice(0, Math.max(0, Number(section.dataset.most) - shown.length))];
}

/** Charts of many ranks are summarised by the server: requesting every line would take megabytes. */
async function refreshCrowd(section, chartOf) {
  const answer = await fetch(section.dataset.charts, { headers: { Accept: "text/html" } }).catch(() => null);
  if (!answer?.ok) return;
  takeOver(section.querySelector("[data-metrics-list]"), new DOMParser().parseFromString(await answer.text(), "text/html"), chartOf);
  section.querySelector("[data-metrics-none]").hidden = Boolean(shownKeys(section).length);
}

async function refresh(section, chartOf) {
  const known = wanted(section, []);
  let found = await ask(section.dataset.metrics, known, { max_points: POINTS });
  if (!found) return;
  const fresh = wanted(section, found.keys).filter((name) => !known.includes(name));
  if (known.length && fresh.length) found.series.push(...((await ask(section.dataset.metrics, fresh, { max_points: POINTS }))?.series ?? []));
  const list = section.querySelector("[data-metrics-list]");
  for (const key of wanted(section, found.keys)) {
    const items = found.series.filter((item) => item.key === key);
    if (items.length) put(section, list, key, dataOf(items), chartOf);
  }
  section.querySelector("[data-metrics-numbers]").hidden = !rowsOf(section).length;
  section.querySelector("[data-metrics-none]").hidden = Boolean(shownKeys(section).length);
  tellCount(section, found.keys);
}

function put(section, list, key, data, chartOf) {
  if (single(data)) {
    putNumbers(section, key, data);
    return;
  }
  rowsOf(section, key).forEach((row) => row.remove());
  let figure = [...list.querySelectorAll("figure")].find((item) => keyOf(item) === key);
  const known = figure && chartOf(holderOf(figure));
  if (known) {
    known.update(data);
    if (known.state.zoomed) known.looksCloser?.(...known.state.zoomed);
  } else {
    const made = frame(key, data);
    if (figure) figure.replaceWith(made); else list.append(made);
    figure = made;
    const chart = chartOf(holderOf(figure));
    if (chart) lookCloser(section, figure, chart);
  }
  showValues(figure, key, data);
  tellThinned(figure, data);
}

/** Keep the metrics of `section` up to date; `chartOf` gives the chart of a holder. */
export function followMetrics(section, chartOf) {
  if (!section) return;
  const crowd = section.dataset.charts !== undefined;
  if (!crowd) for (const figure of section.querySelectorAll("figure")) {
    const chart = chartOf(holderOf(figure));
    if (chart) lookCloser(section, figure, chart);
  }
  let waiting = false;
  document.querySelector("[data-run-live]")?.addEventListener("numbers", () => {
    if (waiting) return; // one request at a time, at most one every two seconds
    waiting = true;
    setTimeout(async () => {
      await (crowd ? refreshCrowd : refresh)(section, chartOf);
      waiting = false;
    }, crowd ? LONG_PAUSE : PAUSE);
  });
}
