// Elements around a chart: switches for its lines with the values under the pointer, its tools, its notes.

import { text } from "./chart-lines.js";

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

function sample(colour, dash) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "sample");
  svg.setAttribute("viewBox", "0 0 26 10");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("class", `line c${colour}`);
  path.setAttribute("d", "M0 5H26");
  if (dash.length) path.setAttribute("stroke-dasharray", dash.join(" "));
  svg.append(path);
  return svg;
}

/** The names of the lines, each a switch that shows and hides its line. */
export class Legend {
  constructor(row, toggle) {
    this.row = row;
    this.toggle = toggle;
    this.values = [];
  }

  /** Show lines `{name, colour, dash, shown}`, keeping the focus if the names are unchanged. */
  show(lines) {
    const names = lines.map((line) => line.name).join("\n");
    if (this.names !== names) {
      this.names = names;
      this.place = make("span", { class: "key-place small muted" });
      this.keys = lines.map((line, index) => make("button", { type: "button", class: "key line-key", click: () => this.toggle(index) },
        sample(line.colour, line.dash), make("span", {}, line.name), make("span", { class: "key-value" })));
      this.row.replaceChildren(...this.keys, this.place);
    }
    lines.forEach((line, index) => this.keys[index].setAttribute("aria-pressed", String(line.shown)));
  }

  /** Show the values at a position of the axis; without one, none. */
  tell(place, values) {
    this.keys?.forEach((key, index) => { key.lastElementChild.textContent = values[index] ?? ""; });
    if (this.place) this.place.textContent = place;
  }
}

/** The row of tools; `acts` are their actions. */
export class Tools {
  constructor(row, title, acts) {
    const tool = (label, name, act) => make("button", { type: "button", class: "btn small", "aria-label": `${name}: ${title}`, title: name, click: act }, label);
    this.log = tool("Log scale", "Log scale", acts.log);
    this.log.setAttribute("aria-pressed", "false");
    this.weight = make("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, "aria-label": `Smoothing: ${title}`, input: () => acts.smooth(Number(this.weight.value)) });
    this.told = make("span", { class: "weight", "aria-hidden": "true" }, "0"); // the slider announces its value itself
    this.reset = tool("Reset zoom", "Reset zoom", acts.reset);
    const zoom = make("span", { class: "zoom" }, tool("‹", "Earlier", () => acts.pan(-1)), tool("−", "Zoom out", () => acts.zoom(2)),
      tool("+", "Zoom in", () => acts.zoom(0.5)), tool("›", "Later", () => acts.pan(1)), this.reset);
    row.replaceChildren(this.log, make("label", { class: "smoothing" }, "Smoothing ", this.weight, this.told), zoom);
  }

  show(state) {
    this.log.setAttribute("aria-pressed", String(state.log));
    this.told.textContent = state.weight.toFixed(2).replace(/\.?0+$/, "") || "0";
    this.reset.disabled = !state.zoomed;
  }
}

/** The first non-finite value of a line, as text. */
export const oddText = (odd) => `${odd.line}: first ${text(odd.value)} at ${text(odd.step)}`;

/** The notes below a chart: warnings first, then remarks about the drawing. */
export function showNotes(row, alarms, remarks) {
  const words = JSON.stringify([alarms, remarks]);
  if (row.dataset.words === words) return;
  row.dataset.words = words;
  row.replaceChildren(
    ...alarms.map((words) => make("p", { class: "error-text" }, words)),
    ...remarks.map((words) => make("p", { class: "muted small" }, words)),
  );
}

/** Marks over the drawing for the first non-finite value of a line; `go` moves the cursor there. */
export class Marks {
  constructor(go) {
    this.go = go;
    this.box = make("div", { class: "odd-marks" });
    this.marks = [];
  }

  /** Show one mark per step; lines that become non-finite at the same step share one. Returns whether anything changed. */
  show(found) {
    const named = JSON.stringify(found);
    if (named === this.named) return false; // keeps a mark under the pointer or with the focus
    this.named = named;
    const bySteps = new Map();
    for (const odd of found) bySteps.set(odd.step, [...(bySteps.get(odd.step) ?? []), odd]);
    this.marks = [...bySteps].map(([step, odds]) => {
      const words = odds.map(oddText).join("; ");
      const names = [...new Set(odds.map((odd) => text(odd.value)))].join(" ");
      const button = make("button", { type: "button", "aria-label": words, click: () => this.go(step) }, names);
      return { step, element: make("div", { class: "odd-at" }, button, make("span", { class: "odd-words", "aria-hidden": "true" }, words)) };
    });
    this.box.replaceChildren(...this.marks.map((mark) => mark.element));
    return true;
  }

  /** Move every mark to its position in the drawing `plot`. */
  settle(plot) {
    const width = plot.over.clientWidth;
    for (const { step, element } of this.marks) {
      const left = plot.valToPos(step, "x");
      element.hidden = !(left >= -1 && left <= width + 1);
      element.style.left = `${left}px`;
      element.classList.toggle("right", left > width / 2);
    }
  }
}
