// Replaces the server's drawing of a line chart by one to zoom, hover and switch to a logarithmic scale.

const COLOURS = 6;
const dark = matchMedia("(prefers-color-scheme: dark)");
const charts = new Map();

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Gaps where a value is no finite number: the chart library draws none through null.
const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

function table(data) {
  return [data.x.map(finite), ...data.lines.map((line) => line.y.map(finite))];
}

function smooth(values, window) {
  if (window < 2) return values;
  let mean = null;
  const keep = 1 - 2 / (window + 1);
  return values.map((value) => {
    if (value === null) return null;
    mean = mean === null ? value : keep * mean + (1 - keep) * value;
    return mean;
  });
}

function options(holder, data, width) {
  const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 } };
  const positive = data.lines.every((line) => line.y.every((value) => finite(value) === null || value > 0));
  return {
    width,
    height: 230,
    scales: { x: { time: false }, y: { distr: holder.dataset.log === "1" && positive ? 3 : 1 } },
    axes: [{ ...axis, label: undefined }, { ...axis, size: 62 }],
    cursor: { drag: { x: true, y: false } },
    series: [
      { label: data.x_label || "x" },
      ...data.lines.map((line, index) => ({ label: line.name, stroke: css(`--c${index % COLOURS}`), width: 1.6, points: { show: data.x.length < 40 } })),
    ],
  };
}

function values(holder, data) {
  const [x, ...lines] = table(data);
  return [x, ...lines.map((line) => smooth(line, Number(holder.dataset.smooth || 0)))];
}

function draw(holder) {
  const data = charts.get(holder).data;
  const box = holder.querySelector(".chart-box");
  charts.get(holder).plot?.destroy();
  box.querySelector("svg")?.remove();
  charts.get(holder).plot = new uPlot(options(holder, data, box.clientWidth), values(holder, data), box);
}

function button(text, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "btn small";
  made.textContent = text;
  made.setAttribute("aria-pressed", "false");
  made.addEventListener("click", () => made.setAttribute("aria-pressed", String(act())));
  return made;
}

function controls(holder) {
  const row = document.createElement("div");
  row.className = "row";
  row.append(
    button("Log scale", () => { holder.dataset.log = holder.dataset.log === "1" ? "0" : "1"; draw(holder); return holder.dataset.log === "1"; }),
    button("Smooth", () => { holder.dataset.smooth = holder.dataset.smooth === "10" ? "0" : "10"; draw(holder); return holder.dataset.smooth === "10"; }),
  );
  holder.append(row);
}

function start(holder) {
  if (charts.has(holder) || !holder.dataset.chart || typeof uPlot === "undefined") return;
  const data = JSON.parse(holder.dataset.chart);
  if (data.x.length < 2) return;
  charts.set(holder, { data, plot: null });
  holder.querySelector(".keys")?.remove();
  draw(holder);
  controls(holder);
  new ResizeObserver(() => {
    const { plot } = charts.get(holder);
    const width = holder.querySelector(".chart-box").clientWidth;
    if (plot && width && Math.abs(plot.width - width) > 1) plot.setSize({ width, height: 230 });
  }).observe(holder);
}

function startAll(root) {
  root.querySelectorAll?.("[data-chart]").forEach(start);
}

// New metrics of a run that is going on: the stream says so, the numbers come from the API.
function lineName(item) {
  return `${item.stage}${item.attempt > 1 ? ` attempt ${item.attempt}` : ""} rank ${item.rank}`;
}

function byKey(series) {
  const found = new Map();
  for (const item of series) found.set(item.key, [...(found.get(item.key) || []), item]);
  return found;
}

function merged(items) {
  const steps = [...new Set(items.flatMap((item) => item.steps))].sort((a, b) => a - b);
  const lines = items.map((item) => {
    const known = new Map(item.steps.map((step, index) => [step, item.values[index]]));
    return { name: lineName(item), y: steps.map((step) => known.get(step) ?? null) };
  });
  return { x: steps, lines, x_label: "step" };
}

function figure(key) {
  const made = document.createElement("figure");
  made.className = "panel card";
  made.dataset.key = key;
  const caption = document.createElement("figcaption");
  const title = document.createElement("h3");
  title.textContent = key;
  caption.append(title);
  const holder = document.createElement("div");
  holder.className = "chart";
  holder.dataset.chart = "";
  const box = document.createElement("div");
  box.className = "chart-box";
  holder.append(box);
  made.append(caption, holder);
  return made;
}

function refresh(list, series) {
  for (const [key, items] of [...byKey(series)].slice(0, 12)) {
    const data = merged(items);
    if (data.x.length < 2) continue;
    let shown = [...list.querySelectorAll("figure")].find((item) => item.querySelector("h3").textContent === key);
    if (!shown) {
      shown = figure(key);
      list.append(shown);
      document.querySelector("[data-metrics-none]")?.remove();
    }
    const holder = shown.querySelector("[data-chart]");
    const known = charts.get(holder);
    if (!known) {
      charts.set(holder, { data, plot: null });
      holder.querySelector(".keys")?.remove();
      draw(holder);
      controls(holder);
    } else if (known.data.lines.length !== data.lines.length) {
      known.data = data;
      draw(holder);
    } else {
      known.data = data;
      known.plot.setData(values(holder, data));
    }
  }
}

const section = document.querySelector("[data-metrics]");
let waiting = false;
document.querySelector("[data-run-live]")?.addEventListener("numbers", () => {
  if (waiting) return; // one request at a time, at most one in two seconds
  waiting = true;
  setTimeout(async () => {
    waiting = false;
    const answer = await fetch(`${section.dataset.metrics}?max_points=400`);
    if (answer.ok) refresh(section.querySelector("[data-metrics-list]"), (await answer.json()).series);
  }, 2000);
});

// What the ranks use, while the run goes on: the page's own drawing is fetched again and its numbers are taken over.
const used = document.querySelector("[data-resources]");

function takeOver(list, fresh) {
  for (const figure of [...fresh.querySelectorAll("figure")]) {
    const shown = document.getElementById(figure.id);
    const holder = shown?.querySelector("[data-chart]");
    const data = JSON.parse(figure.querySelector("[data-chart]").dataset.chart);
    const known = charts.get(holder);
    if (!known) {
      if (shown) shown.replaceWith(figure); else list.append(figure); // the observer below draws it
    } else {
      const same = known.data.lines.length === data.lines.length;
      known.data = data;
      if (same) known.plot.setData(values(holder, data)); else draw(holder);
    }
  }
}

async function lookAgain() {
  let more = true;
  if (document.visibilityState === "visible") {
    const answer = await fetch(used.dataset.resources, { headers: { Accept: "text/html" } }).catch(() => null);
    if (answer?.ok) {
      more = answer.status !== 286; // the run has ended: these were the last numbers
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      takeOver(used.querySelector("[data-resources-list]"), fresh);
      used.querySelector("[data-resources-none]").hidden = Boolean(used.querySelector("figure"));
    }
  }
  if (more) setTimeout(lookAgain, 4000);
}
if (used && document.querySelector("[data-run-live]")) setTimeout(lookAgain, 4000);

document.addEventListener("DOMContentLoaded", () => startAll(document));
if (document.readyState !== "loading") startAll(document);
new MutationObserver((changes) => {
  for (const change of changes) change.addedNodes.forEach((node) => startAll(node));
}).observe(document.body, { childList: true, subtree: true });
dark.addEventListener("change", () => { for (const holder of charts.keys()) draw(holder); });
