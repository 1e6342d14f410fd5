// The checkboxes of the list of jobs: what is done to the selected jobs is asked and done like every other action.
"use strict";

(() => {
  const found = document.getElementById("found");
  const bar = document.getElementById("chosen");
  const count = document.getElementById("chosen-count");
  const boxes = () => [...found.querySelectorAll('input[name="pick"]')];
  let last = null; // the box that was clicked before, for a range

  function tell() {
    const all = boxes();
    const chosen = all.filter((box) => box.checked).map((box) => Number(box.value));
    bar.hidden = !chosen.length;
    count.textContent = `${chosen.length} ${chosen.length === 1 ? "job" : "jobs"} selected`;
    for (const button of bar.querySelectorAll("button.action")) {
      const body = JSON.parse(button.dataset.body);
      body.filter.id = chosen;
      button.dataset.body = JSON.stringify(body);
    }
    const every = document.getElementById("pick-all");
    if (!every) return;
    every.checked = chosen.length > 0 && chosen.length === all.length;
    every.indeterminate = chosen.length > 0 && chosen.length < all.length;
  }

  function clear() {
    for (const box of boxes()) box.checked = false;
    tell();
  }

  found.addEventListener("click", (event) => {
    const box = event.target;
    if (box.id === "pick-all") {
      for (const one of boxes()) one.checked = box.checked;
    } else if (box.name === "pick") {
      const all = boxes();
      const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((a, b) => a - b);
      if (event.shiftKey && from >= 0) for (const one of all.slice(from, to + 1)) one.checked = box.checked;
      last = box;
    } else return;
    tell();
  });
  document.getElementById("chosen-none").addEventListener("click", clear);
  document.addEventListener("acted", clear);
  document.addEventListener("looked", tell); // rows may have gone
  tell(); // a browser remembers the boxes of a page that one returns to
})();
