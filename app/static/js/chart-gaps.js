// Gaps in the lines of a chart, and isolated points between gaps; called by the chart library as it draws.

/** The index of the next number in one direction; -1 or the length if there is none. */
function beside(values, at, side) {
  let other = at + side;
  while (other >= 0 && other < values.length && typeof values[other] !== "number") other += side;
  return other;
}

/**
 * The gaps of a line, in pixels: from the last number before a null to the first one after it. The library would
 * start at the neighbouring steps of other lines, and leave stumps that represent no value.
 */
export function gaps(plot, index, first, last) {
  const [x, values] = [plot.data[0], plot.data[index]];
  const pixel = (at) => plot.valToPos(x[Math.min(Math.max(at, 0), x.length - 1)], "x", true);
  const found = [];
  for (let at = first; at <= last; at += 1) {
    if (values[at] !== null) continue;
    const next = beside(values, at, 1);
    found.push([pixel(beside(values, at, -1)), pixel(next)]);
    at = next - 1;
  }
  return found;
}

/** Points with a gap on both sides, which no line would show. */
export function alone(plot, index, show, broken) {
  if (!broken?.length) return null;
  const values = plot.data[index];
  const joined = (at, side) => {
    let other = at + side;
    while (values[other] === undefined && other >= 0 && other < values.length) other += side;
    return typeof values[other] === "number";
  };
  const [first, last] = plot.series[0].idxs;
  const found = [];
  for (let at = first; at <= last; at += 1) {
    if (typeof values[at] === "number" && !joined(at, -1) && !joined(at, 1)) found.push(at);
  }
  return found.length ? found : null;
}
