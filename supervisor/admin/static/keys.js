// Keys, and buttons that copy. Single letters work only outside of fields, and not while a dialog is open.
"use strict";

(() => {
  const PAGES = { o: "/", j: "/jobs", b: "/batches", f: "/failures", w: "/workers", s: "/schedules" };
  const HELP = [
    ["/", "search"],
    ["j k", "next and previous row"],
    ["Enter", "open the row"],
    ["x", "select the row"],
    ["n", "enqueue a job"],
    ["g o", "overview; j jobs, b batches, f failures, w workers, s schedules"],
    ["Esc", "leave a field, close a dialog"],
    ["?", "this help"],
  ];
  let going = -Infinity; // when g was pressed

  function element(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  function help() {
    const rows = HELP.flatMap(([keys, text]) => {
      const words = keys.split(" ").flatMap((key) => [element("kbd", { textContent: key }), " "]);
      return [element("dt", {}, ...words), element("dd", { textContent: text })];
    });
    const close = element("button", { textContent: "Close", autofocus: true });
    const title = element("h2", { id: "keys-title", textContent: "Keys" });
    const form = element("form", { method: "dialog" }, element("p", { className: "buttons" }, close));
    const dialog = element("dialog", { className: "keys" }, title, element("dl", {}, ...rows), form);
    dialog.setAttribute("aria-labelledby", "keys-title");
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  const rows = () => [...document.querySelectorAll("main tbody tr[id], main .cause")];
  const current = () => document.activeElement.closest("main tbody tr[id], main .cause");
  const link = (row) => row.querySelector("th a, .standing a, a");

  function move(by) {
    const usable = rows().filter(link);
    const at = usable.indexOf(current());
    const next = usable[at < 0 ? (by > 0 ? 0 : usable.length - 1) : at + by];
    if (next) link(next).focus();
  }

  function search() {
    const field = document.querySelector("form[role=search] input[type=search]");
    if (!field) return location.assign("/jobs");
    field.focus();
    field.select();
  }

  function act(key) {
    if (performance.now() - going < 1500 && key in PAGES) return location.assign(PAGES[key]);
    going = key === "g" ? performance.now() : -Infinity;
    if (key === "/") search();
    else if (key === "?") help();
    else if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
    else if (key === "x") current()?.querySelector("input[name=pick]")?.click();
    else if (key === "n" && document.getElementById("ask")) location.assign("/enqueue");
    else return false;
    return true;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || document.querySelector("dialog[open]")) return;
    const typing = event.target.matches("input:not([type=checkbox]), textarea, select");
    if (typing && event.key === "Escape") event.target.blur();
    else if (!typing && act(event.key) !== false) event.preventDefault();
  });

  // The clipboard exists only on pages of this machine and with TLS; the older way works everywhere.
  async function copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = element("textarea", { value: text, className: "unseen" });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error("refused");
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const { copy: text, path } = button.dataset;
    const said = document.getElementById("said");
    await copy(path ? text + location.origin + path : text).then(
      () => said.replaceChildren(element("span", { textContent: "Copied." })),
      () => said.replaceChildren(element("span", { textContent: "The browser did not allow copying." })),
    );
    setTimeout(() => /^(Copied|The browser)/.test(said.textContent) && said.replaceChildren(), 3000);
  });
})();
