// The form for a new job, or for another payload of an old one. JSON is sent as it was typed: numbers keep their digits.
"use strict";

(() => {
  const form = document.getElementById("new");
  const problem = document.getElementById("new-problem");
  const told = document.getElementById("payload-told");
  const field = (name) => form.elements.namedItem(name);
  const retries = !field("type");

  // Checks a field with JSON, which may be empty.
  function check(input, isObject = false) {
    const text = input.value.trim();
    let wrong = "";
    try {
      const value = text ? JSON.parse(text) : {};
      if (isObject && (typeof value !== "object" || Array.isArray(value) || !value)) wrong = "This is not a JSON object.";
    } catch (error) {
      wrong = `This is not valid JSON: ${error.message}`;
    }
    input.setCustomValidity(wrong);
    input.toggleAttribute("aria-invalid", Boolean(wrong));
    return wrong;
  }

  function tell() {
    const input = field("payload");
    const wrong = check(input);
    const size = new Blob([input.value.trim()]).size;
    told.textContent = wrong || (size ? `Valid JSON, ${size.toLocaleString("en")} bytes as typed` : "Empty: the payload is {}");
    told.classList.toggle("bad", Boolean(wrong));
  }

  function body() {
    const parts = [];
    const add = (name, json) => parts.push(`${JSON.stringify(name)}: ${json}`);
    if ("done" in form.dataset) add("done", "true");
    for (const name of ["type", "delay", "unique_key", "requires"]) {
      if (field(name)?.value.trim()) add(name, JSON.stringify(name === "unique_key" ? field(name).value : field(name).value.trim()));
    }
    for (const name of ["priority", "max_attempts", "payload", "meta"]) {
      if (field(name)?.value.trim()) add(name, field(name).value.trim());
    }
    if (!field("payload").value.trim()) add("payload", "{}");
    return `{${parts.join(", ")}}`;
  }

  async function send() {
    const headers = { "Content-Type": "application/json", "X-Requested-With": "supervisor", Accept: "application/json" };
    const response = await fetch(form.dataset.url, { method: "POST", headers, body: body() });
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) return void (problem.textContent = `Failed: ${answer.error ?? `the server answered ${response.status}`}`);
    const said = retries
      ? `Job ${answer.id} is pending again.`
      : answer.duplicate
        ? `Nothing was enqueued: this unfinished job has the same unique key.`
        : `Job ${answer.id} is enqueued.`;
    sessionStorage.setItem("said", said);
    location.assign(`/jobs/${answer.id}`);
  }

  form.addEventListener("input", (event) => {
    if (event.target === field("payload")) tell();
    if (event.target === field("meta")) check(field("meta"), true);
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button");
    if (button.hasAttribute("aria-busy")) return;
    problem.textContent = "";
    button.setAttribute("aria-busy", "true");
    await send().catch(() => (problem.textContent = "The server cannot be reached. It is unknown whether the job was enqueued."));
    button.removeAttribute("aria-busy");
  });
  tell();
})();
