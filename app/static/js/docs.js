// Opens Swagger UI on the description named by the page.
"use strict";

const place = document.getElementById("api");
window.SwaggerUIBundle({
  domNode: place,
  url: place.dataset.description,
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  presets: [window.SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  validatorUrl: null,
});
