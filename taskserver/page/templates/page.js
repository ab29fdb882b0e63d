// The page renews itself: what is new takes the place of what was there, unless somebody types, marks or sends a form.
"use strict";
(function () {
  const EVERY_SECONDS = 10;
  const main = document.querySelector("main[data-renew]");
  if (main === null) { return; }
  let shown = main.innerHTML;
  let fails = 0;
  let renewedAt = Date.now();

  function isBusy() {
    const chosen = document.getSelection();
    const at = document.activeElement;
    return document.hidden || (chosen !== null && !chosen.isCollapsed && main.contains(chosen.anchorNode)) ||
      (at !== null && at.matches("main input, main select, main button")) ||
      main.querySelector("input:checked") !== null;
  }

  // What stands there is no news: nobody may take it for the state of now.
  function tellOld() {
    document.body.classList.add("is-old");
    if (main.querySelector(".is-news") !== null) { return; }
    const words = document.createElement("p");
    words.className = "card act is-news";
    words.setAttribute("role", "alert");
    words.textContent = "Since " + new Date(renewedAt).toLocaleTimeString() + " nothing is known: the page cannot be renewed. It goes on trying.";
    main.prepend(words);
    shown = null;
  }

  function keyOf(node) { return node.getAttribute("data-key"); }

  // What is the same before and after: a table's frame by its label, a summary by its details, a link by place and words.
  function nameOf(node) {
    return node.getAttribute("aria-label") || keyOf(node.parentElement) || node.getAttribute("href") + node.textContent;
  }

  function replace(nodes) {
    const open = Array.from(main.querySelectorAll("details[open][data-key]"), keyOf);
    const scrolled = new Map(Array.from(main.querySelectorAll(".wide"), (node) => [nameOf(node), node.scrollLeft]));
    const at = document.activeElement;
    const focused = at !== main && main.contains(at) ? nameOf(at) : null;
    main.replaceChildren(...nodes);
    for (const node of main.querySelectorAll("details[data-key]")) {
      if (open.includes(keyOf(node))) { node.open = true; }
    }
    for (const node of main.querySelectorAll(".wide")) { node.scrollLeft = scrolled.get(nameOf(node)) || 0; }
    const again = Array.from(main.querySelectorAll("a, summary, .wide")).find((node) => nameOf(node) === focused);
    if (again !== undefined) { again.focus({ preventScroll: true }); }
  }

  async function renew() {
    if (!isBusy()) {
      try {
        const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
        const found = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main[data-renew]");
        // Without the right page, as after the end of a session, the browser shows what there is.
        if (found === null) {
          if (answer.status === 403) { location.reload(); }
          throw new Error("no page");
        }
        fails = 0;
        renewedAt = Date.now();
        document.body.classList.remove("is-old");
        if (found.innerHTML !== shown && !isBusy()) {
          shown = found.innerHTML;
          replace(found.childNodes);
        }
      } catch (error) {
        fails = Math.min(fails + 1, 6);
        tellOld();
      }
    }
    setTimeout(renew, EVERY_SECONDS * 1000 * (fails + 1));
  }
  setTimeout(renew, EVERY_SECONDS * 1000);
}());
