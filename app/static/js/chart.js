// An interactive line chart with zoom, hover, smoothing and a logarithmic scale, replacing the server's drawing.

import { Legend, Marks, Tools, oddText, showNotes } from "./chart-controls.js";
import { alone, gaps } from "./chart-gaps.js";
import { anyAboveZero, drawable, firstOdd, merge, notAboveZero, refine, smooth, text } from "./chart-lines.js";

const HEIGHT = 230;
const COLOURS = 10;
const DASHES = [[], [8, 4], [2, 3], [9, 3, 2, 3], [4, 2]];
const STEP = 0.25; // share of the visible width moved by keyboard and buttons
const CLOSEST = 1e-4; // share of the whole width: the maximum zoom
const FAINT = "55"; // opacity of the raw line behind a smoothed one, as two hexadecimal digits

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Chart {
  /** `data` is `{x, lines: [{name, x, y, colour, dash}], x_label, points, drawn}`; lines without `x` use the common one. */
  constructor(holder, data) {
    this.box = holder.querySelector(".chart-box");
    this.notes = holder.querySelector(".chart-notes");
    this.title = holder.dataset.title;
    this.state = { log: false, weight: 0, zoomed: null };
    this.styles = new Map();
    this.hidden = new Set();
    this.looksCloser = null; // called with the visible range after a zoom
    this.detail = null; // the finer points of that range, once loaded
    this.closer = ""; // how many of them are drawn
    this.legend = new Legend(holder.querySelector(".keys"), (index) => this.toggle(index));
    this.tools = new Tools(holder.querySelector(".chart-tools"), this.title, {
      log: () => this.change({ log: !this.state.log }),
      smooth: (weight) => this.change({ weight }),
      zoom: (factor) => this.zoomBy(factor),
      pan: (sign) => this.pan(sign),
      reset: () => this.reset(),
    });
    this.marks = new Marks((step) => this.pointAt(step));
    this.said = Object.assign(document.createElement("p"), { className: "sr" });
    this.said.setAttribute("role", "status");
    holder.append(this.said);
    this.box.setAttribute("aria-label", `${this.title}, drawing. Arrow keys move along it, plus and minus zoom, shift and arrows move the range, 0 shows all.`);
    this.box.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.resize()).observe(this.box);
    this.update(data);
  }

  /** Take over new data; a zoomed range is kept. */
  update(data) {
    this.data = this.detail ? refine(data, ...this.detail) : data;
    data.lines.forEach((line) => {
      if (!this.styles.has(line.name)) this.styles.set(line.name, this.styles.size);
    });
    this.show();
  }

  /** Put finer points of a range into the lines: `found` is data like that of `update`. */
  refine(from, to, found) {
    this.detail = [from, to, found.lines];
    this.data = refine(this.data, ...this.detail);
    this.closer = `${found.drawn.toLocaleString("en-GB")} of ${found.points.toLocaleString("en-GB")} points of this range.`;
    this.show();
    this.say(this.closer);
  }

  change(wanted) {
    Object.assign(this.state, wanted);
    this.show();
  }

  style(line) {
    const place = this.styles.get(line.name);
    const colour = (line.colour ?? place) % COLOURS;
    return { colour, dash: DASHES[(line.dash ?? place + Math.floor(place / COLOURS)) % DASHES.length] };
  }

  get lines() {
    return this.data.lines.map((line) => ({ name: line.name, ...this.style(line), shown: !this.hidden.has(line.name) }));
  }

  show() {
    this.table = merge(this.data);
    this.log = this.state.log && anyAboveZero(this.table);
    const main = this.table.columns.map((column) => drawable(column, this.log));
    const smoothed = this.state.weight > 0 ? main.map((column) => smooth(column, this.state.weight)) : [];
    this.draw([this.table.x, ...(smoothed.length ? smoothed : main), ...(smoothed.length ? main : [])]);
    this.legend.show(this.lines);
    this.tools.show(this.state);
    this.remark();
  }

  remark() {
    const odd = firstOdd(this.table, this.data.lines);
    const shown = odd.filter((item) => !this.hidden.has(item.line));
    if (this.marks.show(shown) && this.plot) this.marks.settle(this.plot);
    const remarks = [];
    const left = this.state.log && notAboveZero(this.table, this.data.lines);
    if (left) {
      const where = `${left.count.toLocaleString("en-GB")} value${left.count > 1 ? "s" : ""} at or below 0, first ${left.line} at ${text(left.step)}`;
      remarks.push(this.log ? `A logarithmic scale cannot show ${where}.` : `No logarithmic scale: no value is above 0 (${where}).`);
    }
    if (this.closer) remarks.push(this.closer);
    if (this.state.weight > 0 && this.data.drawn < this.data.points) remarks.push("Smoothed over the drawn points, not over all points; the raw lines are shown faintly behind.");
    showNotes(this.notes, odd.map(oddText), remarks);
  }

  draw(values) {
    if (!this.table.x.length) return;
    const kind = [this.log, this.lines.map((line) => JSON.stringify([line.name, line.colour, line.dash])).join(), values.length].join();
    if (this.plot && this.kind === kind) {
      this.takeOver(values);
      return;
    }
    if (!this.box.clientWidth || !(this.plot || this.box.checkVisibility())) return; // drawn as soon as it is visible
    const range = this.state.zoomed;
    this.plot?.destroy();
    this.kind = kind;
    this.box.querySelector("svg")?.remove();
    this.plot = new uPlot(this.options(values.length), values, this.box);
    this.plot.over.append(this.marks.box);
    if (range) this.plot.setScale("x", { min: range[0], max: range[1] });
  }

  takeOver(values) {
    const range = this.state.zoomed;
    if (!range) {
      this.plot.setData(values);
      return;
    }
    this.plot.batch(() => {
      this.plot.setData(values, false);
      this.plot.setScale("x", { min: range[0], max: range[1] });
    });
  }

  options(count) {
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 } };
    const ticks = (plot, splits) => splits.map((value) => (value === null ? "" : text(value, 7)));
    const few = this.table.x.length < 40;
    const lines = this.lines;
    const series = lines.map((line) => ({
      label: line.name, show: line.shown, stroke: css(`--c${line.colour}`), width: 1.6, dash: line.dash, gaps, points: { show: few, filter: few ? null : alone },
    }));
    const raw = count > lines.length + 1 ? series.map((line) => ({ ...line, label: `${line.label}, raw`, stroke: line.stroke + FAINT, dash: [], points: { show: false } })) : [];
    return {
      width: this.box.clientWidth,
      height: HEIGHT,
      scales: { x: { time: false }, y: this.log ? { distr: 3 } : { distr: 1, range } },
      axes: [{ ...axis, size: 32, values: ticks }, { ...axis, size: 66, values: ticks }],
      legend: { show: false },
      // All charts with the same axis show the pointer's position; each keeps its own range.
      cursor: { y: false, drag: { x: true, y: false }, sync: { key: this.data.x_label || "x", scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } } },
      series: [{}, ...series, ...raw],
      hooks: { setScale: [(plot, key) => key === "x" && this.ranged(plot)], setCursor: [(plot) => this.tell(plot)], draw: [(plot) => this.marks.settle(plot)] },
    };
  }

  // The range

  get whole() {
    const { x } = this.table;
    return [x[0], x[x.length - 1]];
  }

  ranged(plot) {
    if (plot !== this.plot) return; // being built; it takes over the previous range
    const before = String(this.state.zoomed);
    const { min, max } = plot.scales.x;
    const [first, last] = this.whole;
    this.state.zoomed = min > first || max < last ? [min, max] : null;
    this.tools.show(this.state);
    if (String(this.state.zoomed) === before) return;
    this.detail = null;
    this.closer = "";
    this.remark();
    if (this.state.zoomed) this.looksCloser?.(min, max);
  }

  setRange(min, max) {
    const [first, last] = this.whole;
    const width = Math.min(Math.max(max - min, (last - first) * CLOSEST), last - first);
    if (!(width > 0)) return;
    const start = Math.min(Math.max(min, first), last - width);
    this.plot?.setScale("x", { min: start, max: start + width });
    this.say(`${text(start)} to ${text(start + width)} of ${text(first)} to ${text(last)}`);
  }

  zoomBy(factor) {
    if (!this.plot) return;
    const { min, max } = this.plot.scales.x;
    const at = this.plot.cursor.left >= 0 ? this.plot.posToVal(this.plot.cursor.left, "x") : (min + max) / 2;
    this.setRange(at - (at - min) * factor, at + (max - at) * factor);
  }

  pan(sign) {
    if (!this.plot) return;
    const { min, max } = this.plot.scales.x;
    this.setRange(min + sign * STEP * (max - min), max + sign * STEP * (max - min));
  }

  reset() {
    this.setRange(...this.whole);
  }

  // The cursor

  press(event) {
    if (!this.plot || event.target !== this.box || event.ctrlKey || event.metaKey || event.altKey) return;
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const ends = { Home: 0, End: this.table.x.length - 1 }[event.key];
    if (side && event.shiftKey) this.pan(side);
    else if (side) this.walk(side);
    else if (ends !== undefined) this.pointAt(this.table.x[ends]);
    else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
    else if (event.key === "-") this.zoomBy(2);
    else if (event.key === "0" || event.key === "Escape") this.reset();
    else return;
    event.preventDefault();
  }

  walk(side) {
    const { x } = this.table;
    const { min, max } = this.plot.scales.x;
    const now = this.plot.cursor.left >= 0 ? this.plot.cursor.idx : null;
    const first = x.findIndex((step) => step >= min);
    const last = x.findLastIndex((step) => step <= max);
    this.pointAt(x[now === null || now === undefined ? (side > 0 ? first : last) : Math.min(Math.max(now + side, first), last)]);
  }

  pointAt(step) {
    if (!this.plot || step === undefined) return;
    const { min, max } = this.plot.scales.x;
    if (step < min || step > max) this.setRange(step - (max - min) / 2, step + (max - min) / 2);
    this.plot.setCursor({ left: this.plot.valToPos(step, "x"), top: this.plot.over.clientHeight / 2 });
    this.say([this.place(step), ...this.lines.map((line, index) => line.shown && `${line.name} ${this.worded(index, this.plot.cursor.idxs)}`).filter(Boolean)].join(", "));
  }

  place(step) {
    return `${this.data.x_label || "x"} ${text(step)}`;
  }

  worded(index, idxs) {
    const at = idxs?.[index + 1];
    const cursor = this.plot.cursor.idx;
    if (at === null || at === undefined) return "–";
    const value = text(this.table.columns[index][at]);
    const smoothed = this.state.weight > 0 ? this.plot.data[index + 1][at] : null;
    const soft = typeof smoothed === "number" ? ` (smoothed ${text(smoothed)})` : "";
    return at === cursor ? value + soft : `${value}${soft} at ${text(this.table.x[at])}`;
  }

  tell(plot) {
    if (plot !== this.plot) return;
    const { idx, idxs, left } = plot.cursor;
    // A chart that ends earlier has no values at a position of another chart.
    if (idx === null || idx === undefined || left < 0 || left > plot.over.clientWidth) this.legend.tell("", []);
    else this.legend.tell(this.place(this.table.x[idx]), this.lines.map((line, index) => (line.shown ? this.worded(index, idxs) : "")));
  }

  say(words) {
    this.said.textContent = words;
  }

  toggle(index) {
    const { name } = this.data.lines[index];
    if (!this.hidden.delete(name)) this.hidden.add(name);
    const show = !this.hidden.has(name);
    if (this.plot) {
      this.plot.setSeries(index + 1, { show });
      const raw = index + 1 + this.data.lines.length;
      if (raw < this.plot.series.length) this.plot.setSeries(raw, { show });
    }
    this.legend.show(this.lines);
    this.remark();
  }

  resize() {
    const width = this.box.clientWidth;
    if (!this.plot || !this.kind) this.show();
    else if (width && Math.abs(this.plot.width - width) > 1) this.plot.setSize({ width, height: HEIGHT });
  }

  /** Redraw in the colours of another theme. */
  repaint() {
    this.kind = "";
    this.show();
  }
}

/** The vertical range: some room around the values, and around a constant value. */
function range(plot, low, high) {
  if (low === null) return [0, 1];
  const margin = low === high ? Math.abs(low) * 0.1 || 0.5 : 0;
  return margin ? [low - margin, high + margin] : uPlot.rangeNum(low, high, 0.1, true);
}
