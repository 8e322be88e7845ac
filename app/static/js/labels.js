// Fields edited in place: keys, focus, and typed text after an Escape.

const drafts = new Map();

function draftOf(field) {
  return `${field.form.action} ${field.name}`;
}

document.addEventListener("keydown", (event) => {
  const editor = event.target.closest?.("[data-editor]");
  if (!editor || event.isComposing) return;
  if (event.key === "Escape") {
    event.stopPropagation();
    editor.querySelector("[data-back]").click();
  } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    editor.requestSubmit(); // plain Enter is a new line in notes
  }
});

document.addEventListener("input", (event) => {
  if (event.target.matches("[data-editor] textarea")) drafts.set(draftOf(event.target), event.target.value);
});

// Reopened notes show the text typed before Escape, which is easily hit and cannot be undone.
document.addEventListener("htmx:after:swap", () => {
  for (const field of document.querySelectorAll("[data-editor] [autofocus]")) {
    if (field.dataset.ready) continue;
    field.dataset.ready = "1";
    const draft = drafts.get(draftOf(field));
    if (draft !== undefined) field.value = draft;
    field.focus({ preventScroll: true });
    if (field.matches("input")) field.select();
  }
});

document.addEventListener("htmx:after:request", (event) => {
  const { sourceElement, response } = event.detail.ctx;
  if (!sourceElement.matches?.("[data-editor]") || !response || response.status >= 400) return;
  for (const field of sourceElement.querySelectorAll("[autofocus]")) drafts.delete(draftOf(field));
});

// The focus returns to where the field was opened, so that keyboard users continue from there.
let opened = "";

document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-edit]");
  if (link) opened = link.dataset.edit;
  // Clicking the text also opens its field, unless a part of it is selected.
  const text = event.target.closest("[data-opens]");
  if (text && !event.target.closest("a") && getSelection().isCollapsed) text.closest(".label").querySelector("[data-edit]")?.click();
});

document.addEventListener("htmx:after:swap", () => {
  if (!opened || document.querySelector("[data-editor]")) return;
  document.querySelector(`[data-edit="${opened}"]`)?.focus({ preventScroll: true });
  opened = "";
});
