// Lines of a chart as plain data: merged on one axis, smoothed, distinguishing non-finite values from missing points.
//
// A value is a number, null (a point without a value), or the name of a non-finite number; undefined means that the line
// has no point there. The chart library breaks a line at null and draws straight through undefined.

const NAMES = new Set(["NaN", "Infinity", "-Infinity"]);
const FROM_LEAST = 1e-3;
const BELOW = 1e6;

/** Whether a value is the name of a non-finite number. */
export const isOdd = (value) => NAMES.has(value);

/** Points of a line by step; of two points at one step the later one counts. */
function points(line, common) {
  const steps = line.x ?? common;
  const found = new Map();
  steps.forEach((step, index) => {
    if (typeof step === "number" && Number.isFinite(step)) found.set(step, line.y[index]);
  });
  return found;
}

/** Put lines on one axis: `{x, columns}`, a column per line, undefined where a line has no point. */
export function merge(data) {
  const found = data.lines.map((line) => points(line, data.x));
  const x = [...new Set(found.flatMap((known) => [...known.keys()]))].sort((a, b) => a - b);
  return { x, columns: found.map((known) => x.map((step) => known.get(step))) };
}

/** Replace the part of each line between two steps by finer points. */
export function refine(data, from, to, finer) {
  const byName = new Map(finer.map((line) => [line.name, line]));
  const lines = data.lines.map((line) => {
    const fine = byName.get(line.name);
    if (!fine) return line;
    const steps = line.x ?? data.x;
    const outside = steps.map((step, index) => index).filter((index) => steps[index] < from || steps[index] > to);
    return { ...line, x: [...outside.map((index) => steps[index]), ...fine.x], y: [...outside.map((index) => line.y[index]), ...fine.y] };
  });
  return { ...data, lines };
}

/** Values to draw: numbers, null for a gap, undefined for nothing. A logarithmic axis cannot show 0 and below. */
export function drawable(column, logarithmic) {
  return column.map((value) => {
    if (value === undefined) return undefined;
    return typeof value === "number" && !(logarithmic && value <= 0) ? value : null;
  });
}

/** Exponential moving average, corrected for its start at zero; gaps are kept, and do not reset it. */
export function smooth(values, weight) {
  let sum = 0;
  let known = 0;
  return values.map((value) => {
    if (typeof value !== "number") return value;
    sum = weight * sum + (1 - weight) * value;
    known = weight * known + (1 - weight);
    return sum / known;
  });
}

/** The first non-finite value of each line: `{line, step, value}`. */
export function firstOdd(table, lines) {
  return lines.flatMap((line, index) => {
    const at = table.columns[index].findIndex(isOdd);
    return at < 0 ? [] : [{ line: line.name, step: table.x[at], value: table.columns[index][at] }];
  });
}

/** How many values a logarithmic axis leaves out, and the first of them; null if none. */
export function notAboveZero(table, lines) {
  let count = 0;
  let first = null;
  table.columns.forEach((column, index) => column.forEach((value, at) => {
    if (typeof value !== "number" || value > 0) return;
    count += 1;
    if (first === null || table.x[at] < first.step) first = { line: lines[index].name, step: table.x[at] };
  }));
  return first && { count, ...first };
}

export const anyAboveZero = (table) => table.columns.some((column) => column.some((value) => typeof value === "number" && value > 0));

const inShort = (value) => value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");

/** A measured number for people: unlike counts, large ones are not written in full. */
export const measured = (value) => (typeof value === "number" && Math.abs(value) >= BELOW ? inShort(value) : text(value));

/** A number for people, formatted like the service's pages. */
export function text(value, digits = 5) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return { NaN: "NaN", Infinity: "∞", "-Infinity": "−∞" }[value] ?? String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < FROM_LEAST || size >= BELOW) && !(Number.isInteger(value) && size < 1e15)) {
    return inShort(value);
  }
  const shown = Number.isInteger(value) ? value : size >= 10 ** digits ? Math.round(value) : Number(value.toPrecision(digits));
  return shown.toLocaleString("en-GB", { maximumFractionDigits: 12 });
}
