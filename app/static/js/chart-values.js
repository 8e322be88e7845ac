// The table of values below a live chart, in the same form as below a server-drawn one.

import { isOdd, measured, merge, text } from "./chart-lines.js";

const ROWS = 100; // the drawing and the exports have all of them
const TALL = 14; // rows of a table that scrolls

function make(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** The collapsible table below the chart of `figure`; created empty if there is none yet. */
function foldOf(figure, title) {
  const known = figure.querySelector("details.fold");
  if (known) return known;
  const region = make("div", { className: "scroll", tabIndex: 0 }, make("table", {}, document.createElement("thead"), document.createElement("tbody")));
  region.setAttribute("role", "region");
  region.setAttribute("aria-label", `${title}, values`);
  const fold = make("details", { className: "fold" }, make("summary", { textContent: "Values" }), region);
  figure.append(fold);
  return fold;
}

/** Write cells `{words, number}` into a row; unchanged cells are not touched, which preserves a text selection. */
function write(row, tag, cells) {
  cells.forEach(({ words, number }, place) => {
    const cell = row.cells[place] ?? row.appendChild(document.createElement(tag));
    if (tag === "th") cell.scope = "col";
    if (cell.textContent !== words) cell.textContent = words;
    cell.classList.toggle("num", number);
  });
  while (row.cells.length > cells.length) row.lastElementChild.remove();
}

function writeRows(body, tag, rows) {
  rows.forEach((cells, place) => write(body.rows[place] ?? body.insertRow(), tag, cells));
  while (body.rows.length > rows.length) body.lastElementChild.remove();
}

function tellCut(fold, there) {
  const words = there > ROWS ? `The first ${ROWS} of ${text(there)} rows; the drawing and the exports have all of them.` : "";
  const note = fold.querySelector("p");
  if (!words) note?.remove();
  else if (!note) fold.querySelector("summary").after(make("p", { className: "muted small", textContent: words }));
  else if (note.textContent !== words) note.textContent = words;
}

const isNumber = (value) => typeof value === "number";

/** Show the points of a chart as a table, a row per step and a column per line; `data` is the chart's data. */
export function showValues(figure, title, data) {
  const fold = foldOf(figure, title);
  const { x, columns } = merge(data);
  const steps = x.slice(0, ROWS);
  const values = (at) => columns.map((column) => column[at]);
  const heads = [{ words: data.x_label || "x", number: steps.length > 0 }];
  data.lines.forEach((line, place) => heads.push({ words: line.name, number: isNumber(columns[place][0]) }));
  const rows = steps.map((step, at) => [
    { words: text(step), number: true },
    ...values(at).map((value) => ({ words: measured(value), number: isNumber(value) || isOdd(value) })),
  ]);
  const table = fold.querySelector("table");
  writeRows(table.tHead, "th", [heads]);
  writeRows(table.tBodies[0], "td", rows);
  fold.querySelector(".scroll").classList.toggle("tall", rows.length > TALL);
  tellCut(fold, x.length);
}
