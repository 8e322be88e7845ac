// The log of a run: follow its end, find text, and limit the page's size under a flood of lines.

const MOST = 3000; // lines kept in the page
const MOST_READING = 9000; // while the reader has scrolled up: lines in view must not disappear
const NEAR = 40; // pixels from the end that still count as the end
const MARKED = 500; // matches marked within their lines

const box = document.getElementById("log-lines");
const follow = document.querySelector("[data-log-follow]");
const find = document.querySelector("[data-log-find]");
const count = document.querySelector("[data-log-count]");
const told = { total: Number(count.dataset.total), uncounted: Number(count.dataset.uncounted) };
let height = 0;

const isNote = (line) => line.dataset.leftLines !== undefined;
const wanted = () => find.value.toLowerCase();
const textOf = (line) => line.lastElementChild.firstChild;

function matches(line, text) {
  return !text || line.textContent.toLowerCase().includes(text);
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), units.length - 1);
  return `${unit ? (bytes / 1024 ** unit).toFixed(1) : bytes} ${units[unit]}`;
}

function tell() {
  const lines = [...box.children].filter((line) => !isNote(line));
  const number = (value) => value.toLocaleString("en-GB");
  const more = told.uncounted ? `, and ${size(told.uncounted)} more that were not counted` : "";
  const text = wanted();
  const found = text ? ` ${number(lines.filter((line) => !line.hidden).length)} of those here have that text.` : "";
  count.textContent = `Last ${number(lines.length)} of ${number(told.total)} lines${more}.${found}`;
}

/** Highlight matches inside the lines, without changing them. */
function mark() {
  if (!CSS.highlights) return;
  const text = wanted();
  const ranges = [];
  for (const line of text ? box.children : []) {
    if (ranges.length >= MARKED) break;
    const node = line.hidden ? null : textOf(line);
    const lower = node?.data.toLowerCase() ?? "";
    if (!node || lower.length !== node.data.length) continue; // letters that change their length would shift the highlights
    for (let at = lower.indexOf(text); at >= 0; at = lower.indexOf(text, at + text.length)) {
      const range = new Range();
      range.setStart(node, at);
      range.setEnd(node, at + text.length);
      ranges.push(range);
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

/** Remove the oldest lines, without moving the view of a reader who has scrolled up. */
function trim() {
  const most = follow.checked ? MOST : MOST_READING;
  const extra = box.childElementCount - most;
  if (extra <= 0) return;
  const stays = box.children[extra];
  const before = stays.offsetTop;
  for (const line of [...box.children].slice(0, extra)) line.remove();
  if (!follow.checked) box.scrollTop -= before - stays.offsetTop;
}

function toEnd() {
  if (follow.checked) box.scrollTop = box.scrollHeight;
  height = box.scrollHeight;
}

function settle(added) {
  const text = wanted();
  for (const line of added) {
    line.hidden = !matches(line, text);
    told.total += isNote(line) ? Number(line.dataset.leftLines) : 1;
    told.uncounted += isNote(line) ? Number(line.dataset.leftBytes) : 0;
  }
  trim();
  toEnd();
  tell();
  if (text) mark();
}

new MutationObserver((changes) => {
  const added = changes.flatMap((change) => [...change.addedNodes].filter((node) => node instanceof Element && node.parentNode === box));
  if (added.length) settle(added);
}).observe(box, { childList: true });

find.addEventListener("input", () => {
  const text = wanted();
  for (const line of box.children) line.hidden = !matches(line, text);
  toEnd();
  tell();
  mark();
});
find.addEventListener("keydown", (event) => {
  if (event.key === "Enter") event.preventDefault(); // search happens while typing; the form is for the filters
});
follow.addEventListener("change", () => { trim(); toEnd(); });
// Scrolling up stops following, scrolling to the end resumes it; added or removed lines do not count as scrolling.
box.addEventListener("scroll", () => {
  if (box.scrollHeight !== height) {
    height = box.scrollHeight;
    return;
  }
  follow.checked = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
});
toEnd();
