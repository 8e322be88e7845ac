// Opens Swagger UI on the OpenAPI document named by the page.
"use strict";

// Swagger UI takes its theme from a class; the pages take theirs from the system.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

const place = document.getElementById("api");
window.SwaggerUIBundle({
  domNode: place,
  url: place.dataset.description,
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  presets: [window.SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  validatorUrl: null,
  // Behind a path prefix there is a server selection, which Swagger UI leaves unlabelled.
  onComplete: () => document.getElementById("servers")?.setAttribute("aria-label", "Server"),
});
