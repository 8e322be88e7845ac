// The picture to classify: dropped or chosen, with a preview drawn on a canvas (needs no URL in the content security policy).

const form = document.querySelector("[data-drop]");
const file = form.querySelector("input[type=file]");
const canvas = form.querySelector("[data-preview]");

async function preview() {
  const [picture] = file.files;
  canvas.hidden = true;
  if (!picture) return;
  try {
    const bitmap = await createImageBitmap(picture);
    const scale = Math.min(320 / bitmap.width, 200 / bitmap.height);
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = scale < 1;
    pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    canvas.hidden = false;
  } catch {
    canvas.hidden = true; // the service may accept formats that this browser cannot show
  }
}

file.addEventListener("change", preview);
for (const name of ["dragover", "dragenter"]) {
  form.addEventListener(name, (event) => { event.preventDefault(); form.classList.add("over"); });
}
for (const name of ["dragleave", "drop"]) form.addEventListener(name, () => form.classList.remove("over"));
form.addEventListener("drop", (event) => {
  event.preventDefault();
  if (!event.dataTransfer.files.length) return;
  file.files = event.dataTransfer.files;
  preview();
  form.requestSubmit();
});
