// Keeps a page up to date: when the server reports a change, the page is fetched again, and in the parts marked
// `data-live` only the differences are applied. This keeps the focus, open <details>, scroll positions and typed
// text. Without this script or the event stream, the page is static.
"use strict";

(() => {
  const AGAIN = 10000; // milliseconds until a refused stream is tried again
  const OFTEN = 1000; // milliseconds; the shortest time between two refreshes
  const SELDOM = 30000; // milliseconds; the longest time: ages grow even when nothing happens

  const light = document.getElementById("live");
  const words = document.getElementById("live-words");
  let stream = null;
  let fetching = null;
  let wanted = false;
  let looked = performance.now();

  function show(state, text) {
    if (words.textContent === text) return;
    light.className = `live is-${state}`;
    words.textContent = text;
  }

  function lost() {
    const at = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    if (!light.classList.contains("is-lost")) show("lost", `Disconnected since ${at}`);
  }

  // Times in the browser's time zone; the tooltip has UTC, too. The server knows only its own zone.
  const two = (number) => String(number).padStart(2, "0");
  const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}`;
  const day = (at) => `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const stamp = (at) => `${at.getFullYear()}-${day(at)} ${clock(at)}:${two(at.getSeconds())}`;
  const zone = (at) => new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(at).find((part) => part.type === "timeZoneName").value;

  function localise(root) {
    for (const time of root.querySelectorAll("time[data-show]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      const utc = `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
      const local = `${stamp(at)} ${zone(at)}`;
      time.title = local === utc ? utc : `${local} = ${utc}`;
      if (time.dataset.show === "clock") time.textContent = clock(at);
      if (time.dataset.show === "day") time.textContent = day(at);
      if (time.dataset.show === "day-clock") time.textContent = `${day(at)} ${clock(at)}`;
      if (time.dataset.show === "stamp") time.textContent = stamp(at);
    }
    for (const title of root.querySelectorAll("title[data-at]")) {
      const at = new Date(title.dataset.at);
      if (isNaN(at)) continue;
      title.textContent = title.textContent.replace(/^(\d\d-\d\d )?\d\d:\d\d/, (_, dated) => `${dated ? `${day(at)} ` : ""}${clock(at)}`);
    }
  }

  // The new page, or null if it is unavailable; `failed` if it is an error page.
  async function fetched() {
    const response = await fetch(location.href, { cache: "no-store", headers: { Accept: "text/html" } });
    if (new URL(response.url).pathname !== location.pathname) {
      location.reload(); // redirected to the login: the session has ended
      return null;
    }
    if (response.status >= 500) return null;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    localise(page);
    page.failed = !response.ok;
    return page;
  }

  async function look() {
    const page = await fetched();
    looked = performance.now();
    if (page === null) return lost();
    if (!page.querySelector("[data-live]")) {
      if (page.failed && !disturbs()) location.reload(); // shows the error page; a form is left as it is
      return;
    }
    const here = document.querySelectorAll("[data-live]");
    const there = new Map([...page.querySelectorAll("[data-live]")].map((part) => [part.id, part]));
    if (here.length !== there.size || [...here].some((part) => !there.has(part.id))) {
      replaceAll(page);
    } else {
      for (const part of here) adapt(part, there.get(part.id));
    }
    document.dispatchEvent(new Event("looked"));
  }

  // Parts were added or removed: take their order from the new page.
  function replaceAll(page) {
    adapt(document.getElementById("main"), page.getElementById("main"));
  }

  // Refresh now, or once more after the refresh in progress.
  function refresh() {
    if (fetching) {
      wanted = true;
      return fetching;
    }
    fetching = look()
      .catch(lost)
      .then(() => {
        fetching = null;
        if (wanted) {
          wanted = false;
          return refresh();
        }
      });
    return fetching;
  }

  // Do not refresh while the user selects text, presses a button or answers a dialog.
  function disturbs() {
    const marked = getSelection();
    return document.hidden || pressed || document.querySelector("dialog[open]") || (marked && !marked.isCollapsed);
  }

  let pressed = false;
  addEventListener("pointerdown", () => (pressed = true));
  for (const name of ["pointerup", "pointercancel", "blur"]) addEventListener(name, () => (pressed = false));

  let due = 0;
  function soon() {
    if (due) return;
    due = setTimeout(
      () => {
        due = 0;
        if (disturbs()) soon();
        else refresh();
      },
      Math.max(20, OFTEN - (performance.now() - looked)),
    );
  }

  // Make `old` like `fresh`, changing only what differs. Children are matched by id, or by position if they have none.
  function adapt(old, fresh) {
    if (old.isEqualNode(fresh) || old.hasAttribute("data-keep")) return;
    adaptAttributes(old, fresh);
    const named = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
    const stays = new Set([...fresh.children].map((child) => child.id));
    for (const [id, child] of named) if (!stays.has(id)) child.remove(); // first, so that the others need not move
    let next = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      let match = child.id ? named.get(child.id) : next;
      if (match && !child.id && (match.id || match.nodeName !== child.nodeName)) match = null;
      if (match && match.nodeName === child.nodeName) {
        if (match === next) next = next.nextSibling;
        else old.insertBefore(match, next);
        if (match.nodeType === Node.ELEMENT_NODE) adapt(match, child);
        else if (match.data !== child.data) match.data = child.data;
      } else {
        old.insertBefore(document.importNode(child, true), next);
      }
    }
    while (next) {
      const gone = next;
      next = next.nextSibling;
      gone.remove();
    }
  }

  function adaptAttributes(old, fresh) {
    const mine = (name) => name === "open" && old.nodeName === "DETAILS";
    for (const { name, value } of [...fresh.attributes]) {
      if (!mine(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!mine(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
  }

  function listen() {
    if (stream || document.hidden || !window.EventSource) return;
    stream = new EventSource("/api/admin/events");
    let first = true;
    stream.addEventListener("overview", () => {
      show("live", "Live");
      // The first event repeats the state that the page was made from, unless the page is older.
      if (!first || performance.now() - looked > OFTEN) soon();
      first = false;
    });
    stream.addEventListener("trouble", lost); // the database cannot be used
    stream.addEventListener("error", () => {
      lost();
      if (stream && stream.readyState === EventSource.CLOSED) {
        quiet();
        setTimeout(listen, AGAIN);
      }
    });
  }

  function quiet() {
    if (stream) stream.close();
    stream = null;
  }

  // A hidden page requests nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return quiet();
    listen();
    soon();
  });
  localise(document);
  addEventListener("pagehide", quiet);
  addEventListener("pageshow", listen);
  document.addEventListener("acted", () => refresh());
  setInterval(() => {
    if (stream && performance.now() - looked > SELDOM) soon();
  }, 5000);
  listen();
})();
