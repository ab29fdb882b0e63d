// How old this file is, by the visitor's clock.
"use strict";
(function () {
  const node = document.getElementById("made");
  const made = Date.parse(node.dateTime);
  const lateSeconds = Number(node.dataset.late);
  function tell() {
    const seconds = Math.max((Date.now() - made) / 1000, 0);
    const [length, unit] = seconds >= 172800 ? [86400, "days"] : seconds >= 7200 ? [3600, "hours"] : [60, "minutes"];
    document.getElementById("age").textContent = seconds < Math.min(120, lateSeconds) ? "just now" : Math.round(seconds / length) + " " + unit + " ago";
    const isOld = seconds > lateSeconds;
    document.body.classList.toggle("is-old", isOld);
    const verdict = document.getElementById("verdict");
    if (isOld && verdict !== null && !verdict.dataset.was) {
      verdict.dataset.was = verdict.textContent;
      verdict.textContent = "Nothing is known since " + new Date(made).toLocaleString();
      verdict.closest("section").className = "verdict act";
    }
  }
  tell();
  setInterval(tell, 10000);
}());
