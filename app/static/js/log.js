// The log of a run: follow its end, find a text, and keep the page small under a flood of lines.

const MOST = 3000;
const box = document.getElementById("log-lines");
const follow = document.querySelector("[data-log-follow]");
const find = document.querySelector("[data-log-find]");
const count = document.querySelector("[data-log-count]");
let total = box.childElementCount;

function matches(line) {
  const wanted = find.value.toLowerCase();
  return !wanted || line.textContent.toLowerCase().includes(wanted);
}

function tell() {
  const shown = find.value ? `, ${box.querySelectorAll(".log-line:not([hidden])").length} with that text` : "";
  count.textContent = `Last ${box.childElementCount.toLocaleString()} of ${total.toLocaleString()} lines received${shown}.`;
}

function settle(added) {
  added.forEach((line) => { line.hidden = !matches(line); });
  total += added.length;
  while (box.childElementCount > MOST) box.firstElementChild.remove();
  if (follow.checked) box.scrollTop = box.scrollHeight;
  if (added.length) tell();
}

new MutationObserver((changes) => {
  settle(changes.flatMap((change) => [...change.addedNodes].filter((node) => node instanceof Element)));
}).observe(box, { childList: true });

find.addEventListener("input", () => {
  for (const line of box.children) line.hidden = !matches(line);
  tell();
});
follow.addEventListener("change", () => settle([]));
// Scrolling up stops following, back at the end goes on.
box.addEventListener("scroll", () => {
  follow.checked = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
});
box.scrollTop = box.scrollHeight;
