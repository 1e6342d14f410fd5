// Buttons that change something: confirm in a dialog, call the API, show the result.
"use strict";

(() => {
  const dialog = document.getElementById("ask");
  const form = dialog.querySelector("form");
  const title = document.getElementById("ask-title");
  const say = document.getElementById("ask-say");
  const field = document.getElementById("ask-field");
  const number = document.getElementById("ask-number");
  const problem = document.getElementById("ask-problem");
  const yes = document.getElementById("ask-yes");
  const no = document.getElementById("ask-no");
  const said = document.getElementById("said");
  // What a number may be for: its label, what is counted, the least and the most.
  const NUMBERS = { workers: ["Workers", "worker", 0, 1023], max_running: ["Running at most", "job", 1, 1000000] };
  let asking = null; // { button, body, snapshot }

  const counted = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;

  // The text of a button, with the number of jobs, or the one that was entered, inserted.
  function filled(text, values) {
    return text
      .replaceAll("{jobs}", counted(values.jobs ?? 0, "job"))
      .replaceAll("{number}", counted(values.number ?? 0, values.unit));
  }

  async function call(button, body) {
    const { method, url } = button.dataset;
    const response = await fetch(url, {
      method,
      headers: { "Content-Type": "application/json", "X-Requested-With": "supervisor", Accept: "application/json" },
      body: JSON.stringify(body),
    });
    const answer = await response.json().catch(() => ({}));
    return { ok: response.ok, status: response.status, answer };
  }

  function reason({ status, answer }) {
    const told = typeof answer.error === "string" ? answer.error : `the server answered ${status}`;
    const hint = typeof answer.hint === "string" ? ` – ${answer.hint}` : "";
    return `Failed: ${told}${hint}`;
  }

  function announce(text) {
    const words = document.createElement("span");
    words.textContent = text;
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "×";
    close.setAttribute("aria-label", "Close this message");
    close.addEventListener("click", () => said.replaceChildren());
    said.replaceChildren(words, close);
  }

  async function ask(button) {
    const { title: asked, say: what, verb, body, number: given } = button.dataset;
    const bulk = "bulk" in button.dataset;
    asking = { button, body: JSON.parse(body), snapshot: null };
    problem.textContent = "";
    yes.disabled = bulk;
    yes.textContent = verb;
    yes.className = button.classList.contains("danger") ? "danger" : "primary";
    field.hidden = given === undefined;
    number.required = given !== undefined;
    number.value = given ?? "";
    if (given !== undefined) [field.firstElementChild.textContent, , number.min, number.max] = NUMBERS[button.dataset.of];
    title.textContent = bulk ? `${verb} all matching jobs?` : asked;
    say.textContent = bulk ? "Counting…" : what;
    dialog.showModal();
    if (given !== undefined) number.select();
    if (bulk) await count();
  }

  // Which jobs match now: only these are confirmed, and no other job is ever changed.
  async function count() {
    const mine = asking;
    const outcome = await call(mine.button, mine.body).catch(() => null);
    if (mine !== asking) return; // the dialog was closed or used for another action
    if (!outcome || !outcome.ok) {
      say.textContent = "";
      problem.textContent = outcome ? reason(outcome) : "The server cannot be reached.";
      return;
    }
    confirmable(outcome.answer);
  }

  function confirmable({ matching, snapshot }) {
    const { title: asked, say: what } = asking.button.dataset;
    asking.snapshot = snapshot ?? null;
    title.textContent = filled(asked, { jobs: matching });
    say.textContent = matching ? filled(what, { jobs: matching }) : "No matching job is in a state that allows this.";
    yes.disabled = !matching;
  }

  async function act() {
    const { button, body, snapshot } = asking;
    const wanted = { ...body };
    if (snapshot !== null) wanted.snapshot = snapshot;
    const { of } = button.dataset;
    if (of) wanted[of] = Number(number.value);
    yes.setAttribute("aria-busy", "true");
    const outcome = await call(button, wanted).catch(() => null);
    yes.removeAttribute("aria-busy");
    if (!outcome) return void (problem.textContent = "The server cannot be reached. It is unknown whether anything was changed.");
    if (!outcome.ok) {
      problem.textContent = reason(outcome);
      if (outcome.status === 409 && typeof outcome.answer.matching === "number") confirmable(outcome.answer);
      return;
    }
    tell(button, outcome.answer, of && { number: wanted[of], unit: NUMBERS[of][1] });
  }

  function tell(button, answer, entered) {
    const { done, then } = button.dataset;
    let text = filled(done, { jobs: answer.changed, ...entered });
    if (answer.skipped) text += ` Skipped: ${counted(answer.skipped, "job")}.`;
    if (answer.duplicates) text += ` Not retried, because unfinished jobs have their unique keys: ${counted(answer.duplicates, "job")}.`;
    if (then) {
      // The dialog stays open, which prevents a refresh: the page would find that its job is gone.
      sessionStorage.setItem("said", text);
      location.assign(then);
      return;
    }
    dialog.close();
    announce(text);
    document.dispatchEvent(new Event("acted"));
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.action");
    if (button) ask(button);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!yes.hasAttribute("aria-busy")) act();
  });
  no.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => (asking = null));
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // a click on the backdrop
  });
  // The pressed button may be gone after a refresh: move the focus to the message.
  document.addEventListener("looked", () => {
    if (document.activeElement === document.body && said.hasChildNodes()) said.focus({ preventScroll: true });
  });

  const before = sessionStorage.getItem("said");
  if (before) {
    sessionStorage.removeItem("said");
    announce(before);
  }
})();
