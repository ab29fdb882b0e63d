// The page renews itself: what is new takes the place of what was there, unless somebody types, marks or sends a form.
"use strict";
(function () {
  const EVERY_SECONDS = 10;
  const main = document.querySelector("main[data-renew]");
  if (main === null) { return; }
  let shown = main.innerHTML;
  let fails = 0;

  function isBusy() {
    const chosen = document.getSelection();
    const at = document.activeElement;
    return document.hidden || (chosen !== null && !chosen.isCollapsed && main.contains(chosen.anchorNode)) ||
      (at !== null && at.matches("main input, main select, main button")) ||
      main.querySelector("input:checked") !== null;
  }

  function keyOf(node) { return node.getAttribute("data-key"); }

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
        if (found.innerHTML !== shown && !isBusy()) {
          const open = Array.from(main.querySelectorAll("details[open][data-key]"), keyOf);
          const at = document.activeElement;
          const focused = main.contains(at) ? at.getAttribute("href") : null;
          shown = found.innerHTML;
          main.replaceChildren(...found.childNodes);
          for (const node of main.querySelectorAll("details[data-key]")) {
            if (open.includes(keyOf(node))) { node.open = true; }
          }
          if (focused !== null) {
            const again = Array.from(main.querySelectorAll("a")).find((a) => a.getAttribute("href") === focused);
            if (again !== undefined) { again.focus({ preventScroll: true }); }
          }
        }
      } catch (error) {
        fails = Math.min(fails + 1, 6);
      }
    }
    setTimeout(renew, EVERY_SECONDS * 1000 * (fails + 1));
  }
  setTimeout(renew, EVERY_SECONDS * 1000);
}());
