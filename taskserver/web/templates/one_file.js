// How old this file is, by the visitor's clock.
"use strict";
(function () {
  const node = document.getElementById("made");
  const made = Date.parse(node.dateTime);
  const lateSeconds = Number(node.dataset.late);

  function secondsOld() { return (Date.now() - made) / 1000; }

  function inWords(seconds) {
    if (seconds < -120) { return "at a time that is still to come: the clock of the host or that of this device is wrong"; }
    if (seconds < Math.min(120, lateSeconds)) { return "just now"; }
    const [length, unit] = seconds >= 172800 ? [86400, "days"] : seconds >= 7200 ? [3600, "hours"] : [60, "minutes"];
    return Math.round(seconds / length) + " " + unit + " ago";
  }

  function tell() { document.getElementById("age").textContent = inWords(secondsOld()); }

  tell();
  if (secondsOld() > lateSeconds) {
    document.body.classList.add("is-old");
    document.title = "Old · taskserver";
    for (const verdict of document.querySelectorAll("h1[id$=verdict]")) {
      verdict.textContent = "Nothing is known since " + node.textContent;
      verdict.nextElementSibling.hidden = true;
      verdict.closest("section").className = "verdict act";
    }
    setInterval(tell, 10000);
  } else {
    // A window that was left open shows an old copy of what may be new by now.
    setInterval(() => { if (secondsOld() > lateSeconds) { location.reload(); } else { tell(); } }, 10000);
  }
}());
