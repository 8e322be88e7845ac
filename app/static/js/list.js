// The list of runs: selection and its count, Enter in the field for tags, and no polling while the page is hidden.

const rows = document.getElementById("rows");
const all = document.querySelector("[data-tick-all]");
const told = document.querySelector("[data-ticked]");

function boxes() {
  return [...document.querySelectorAll("#rows input[name=run]")];
}

function count() {
  if (!all || !told) return;
  const ticks = boxes();
  const ticked = ticks.filter((box) => box.checked).length;
  all.checked = ticked > 0 && ticked === ticks.length;
  all.indeterminate = ticked > 0 && ticked < ticks.length;
  const text = ticked ? `${ticked} selected` : "None selected";
  if (told.textContent !== text) told.textContent = text;
}

document.addEventListener("change", (event) => {
  if (event.target === all) boxes().forEach((box) => { box.checked = all.checked; });
  if (event.target === all || event.target.name === "run") count();
});

// A row that leaves the page is no longer selected.
if (rows) new MutationObserver(count).observe(rows, { childList: true });
addEventListener("pageshow", count);
count();

document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing || !event.target.dataset?.enter) return;
  event.preventDefault();
  document.getElementById(event.target.dataset.enter).click();
});

document.addEventListener("htmx:config:request", (event) => {
  if (document.hidden && event.target.matches?.("[data-while-seen]")) event.preventDefault();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) rows?.dispatchEvent(new Event("refresh"));
});
