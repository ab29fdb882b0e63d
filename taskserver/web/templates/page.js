// The page renews itself: what is new takes the place of what was there, unless somebody types, marks or sends a form.
"use strict";
(function () {
  const EVERY_SECONDS = 10;
  const ANSWER_SECONDS = 15;
  const main = document.querySelector("main[data-renew]");
  if (main === null) { return; }
  let shown = main.innerHTML;
  let fails = 0;
  let renewedAt = Date.now();
  let next = null;

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

  // What is the same before and after: a table's frame by its label, a summary by its details, a link by its target, of
  // which there may be several. Words change, as numbers do.
  function nameOf(node) {
    if (!node.matches("a")) { return node.getAttribute("aria-label") || keyOf(node.parentElement); }
    const target = node.getAttribute("href");
    return target + " " + Array.from(main.querySelectorAll("a")).filter((one) => one.getAttribute("href") === target).indexOf(node);
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
    if (focused === null) { return; }
    const again = Array.from(main.querySelectorAll("a, summary, .wide")).find((node) => nameOf(node) === focused);
    if (again !== undefined) { again.focus({ preventScroll: true }); }
  }

  async function renew() {
    next = null;
    if (!isBusy()) {
      try {
        const patience = new AbortController();
        const timer = setTimeout(() => patience.abort(), ANSWER_SECONDS * 1000);
        const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error", signal: patience.signal });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        clearTimeout(timer);
        const found = page.querySelector("main[data-renew]");
        // Where the page refuses, as after the end of a session, the visitor sees what it says.
        if (found === null) {
          if (answer.status < 500 && answer.status !== 429) { location.replace(location.href.split("#")[0]); }
          throw new Error("no page");
        }
        fails = 0;
        renewedAt = Date.now();
        document.title = page.title;
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
    next = setTimeout(renew, EVERY_SECONDS * 1000 * (fails + 1));
  }
  next = setTimeout(renew, EVERY_SECONDS * 1000);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && next !== null) { clearTimeout(next); renew(); }
  });
}());
