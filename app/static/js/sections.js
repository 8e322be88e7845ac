// The sections of a page: one is shown at a time, each has its own URL, and find-in-page searches all of them.
//
// Without this file the page shows every section, and the links above jump to them. Loaded before the body, since
// the first paint must not show sections that are hidden a moment later.

(() => {
  const root = document.documentElement;
  const HIDDEN = "until-found"; // found by find-in-page and by links to a text; browsers without it just hide

  /** The element that a URL fragment points to; null without one. */
  function targetOf(hash) {
    try {
      return document.getElementById(decodeURIComponent(hash.slice(1)));
    } catch {
      return null; // not a valid encoding
    }
  }

  const sectionOf = (element) => element?.closest("[data-section]");

  /** The name of a section in a URL; its parent element is hidden, so that screen readers skip it. */
  const addressOf = (section) => `#${section.firstElementChild.id}`;

  function show(section) {
    for (const other of document.querySelectorAll("[data-section]")) {
      if (other === section) other.removeAttribute("hidden");
      else other.setAttribute("hidden", HIDDEN);
    }
    for (const link of document.querySelectorAll("[data-sections] a")) {
      if (link.hash !== addressOf(section)) {
        link.removeAttribute("aria-current");
        continue;
      }
      link.setAttribute("aria-current", "true");
      const list = link.closest("ul"); // a narrow screen shows a part of the links
      list.scrollLeft = link.offsetLeft - (list.clientWidth - link.offsetWidth) / 2;
    }
  }

  function showTarget() {
    show(sectionOf(targetOf(location.hash)) ?? document.querySelector("[data-section]"));
  }

  function start() {
    if (!document.querySelector("[data-section]")) return;
    showTarget();
    root.classList.remove("sections-wait");
    // A browser does not scroll to a hidden target.
    const target = targetOf(location.hash);
    if (target && !target.matches(".section")) target.scrollIntoView();
    window.addEventListener("popstate", showTarget);
    window.addEventListener("hashchange", showTarget);
  }

  // Shown before the browser navigates: it scrolls, moves the focus and keeps the history itself.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href]");
    if (!link?.hash || link.origin + link.pathname + link.search !== location.origin + location.pathname + location.search) return;
    if (event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const section = sectionOf(targetOf(link.hash));
    if (section) show(section);
  });

  // Find-in-page or a text link has a match in a hidden section: the URL changes to this section.
  document.addEventListener("beforematch", (event) => {
    const section = sectionOf(event.target);
    if (!section) return;
    show(section);
    if (sectionOf(targetOf(location.hash)) !== section) history.replaceState(history.state, "", addressOf(section));
  });

  root.classList.add("sections", "sections-wait");
  document.addEventListener("readystatechange", () => {
    if (document.readyState === "interactive") start();
  });
})();
