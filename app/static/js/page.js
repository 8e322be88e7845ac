// What every page needs: times in the viewer's zone, an up-to-date title, copy buttons, controls that need JavaScript.

const zoned = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

const offsets = new Set(); // offsets of the viewer's zone at the times shown on this page

/** The offset of the viewer's zone at a given time, such as `UTC−04:00`. */
function offset(moment) {
  const minutes = -moment.getTimezoneOffset();
  const two = (number) => String(number).padStart(2, "0");
  return `UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
}

/** A time in the viewer's zone; with its offset if the page shows times with different offsets. */
function local(moment) {
  return offsets.size > 1 ? `${zoned.format(moment)} ${offset(moment)}` : zoned.format(moment);
}

function ago(then) {
  const seconds = Math.max(0, Math.round((Date.now() - then) / 1000));
  if (seconds < 90) return `${seconds} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return local(then);
}

function localise(element) {
  const moment = new Date(element.dateTime);
  if (Number.isNaN(moment.getTime())) return;
  const known = offsets.size;
  offsets.add(offset(moment));
  if (known === 1 && offsets.size > 1) document.querySelectorAll("time[datetime]").forEach(localise);
  const text = element.hasAttribute("data-ago") ? ago(moment) : local(moment);
  if (element.textContent !== text) element.textContent = text;
  const title = `${element.dateTime} (UTC)`;
  if (element.title !== title) element.title = title;
}

function prepare(root) {
  if (!(root instanceof Element)) return;
  const inside = (selector) => [...(root.matches(selector) ? [root] : []), ...root.querySelectorAll(selector)];
  inside("time[datetime]").forEach(localise);
  inside("[data-page-title]").forEach((element) => { document.title = element.dataset.pageTitle; });
  inside("[data-needs-js]").forEach((element) => { element.hidden = false; });
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    // No clipboard (an insecure origin, or permission refused): select the text, so that one key press copies it.
    getSelection().selectAllChildren(source);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
  const compare = event.target.closest("[data-compare]");
  if (compare) {
    const form = compare.closest("[data-runs]");
    const ids = [...form.querySelectorAll("input[name=run]:checked")].map((box) => box.value);
    location.href = `${form.dataset.runs}?ids=${ids.join(",")}`;
  }
  // One open confirmation at a time; a click elsewhere or Escape closes it.
  document.querySelectorAll("details.ask[open]").forEach((open) => {
    if (!open.contains(event.target)) open.open = false;
  });
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  document.querySelectorAll("details.ask[open]").forEach((open) => {
    open.open = false;
    open.querySelector("summary").focus();
  });
});

// The preset changes what empty fields mean: show its values, keeping typed text.
document.addEventListener("change", (event) => {
  const form = event.target.closest("[data-launch]");
  if (!form || event.target.name !== "preset") return;
  const typed = new URLSearchParams([...new FormData(form)].filter(([, value]) => typeof value === "string" && value));
  fetch(`${form.dataset.launch}?${typed}`, { headers: { Accept: "text/html" } })
    .then((answer) => answer.text())
    .then((html) => {
      const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("launch-fields");
      if (fresh) document.getElementById("launch-fields").replaceWith(fresh);
    });
});

new MutationObserver((changes) => {
  for (const change of changes) {
    change.addedNodes.forEach(prepare);
    if (change.type === "characterData" || change.type === "attributes") prepare(change.target.parentElement);
    if (change.target instanceof HTMLTimeElement) localise(change.target);
  }
}).observe(document.body, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["datetime", "data-page-title"] });

setInterval(() => document.querySelectorAll("time[data-ago]").forEach(localise), 1000);
prepare(document.body);
document.querySelector("[data-focus]")?.focus();
