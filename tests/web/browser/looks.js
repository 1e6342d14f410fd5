({
  // Texts that are drawn with too little contrast to their ground, by WCAG 2 AA.
  contrast() {
    const parsed = (text) => {
      const [r, g, b, a = "1"] = text.match(/[\d.]+/g);
      return text.startsWith("color(") ? [r * 255, g * 255, b * 255, +a] : [+r, +g, +b, +a];
    };
    const over = (above, below) => [0, 1, 2].map((i) => above[i] * above[3] + below[i] * (1 - above[3])).concat(1);
    const ground = (element) => {
      const above = element.parentElement ? ground(element.parentElement) : [255, 255, 255, 1];
      return over(parsed(getComputedStyle(element).backgroundColor), above);
    };
    const luminance = (colour) => {
      const [r, g, b] = colour.map((part) => part / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const wrong = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      const text = walker.currentNode.data.trim();
      if (!text || !element.checkVisibility() || element.closest("script, noscript, .unseen, title, option")) continue;
      const style = getComputedStyle(element);
      const below = ground(element);
      const [a, b] = [luminance(over(parsed(style.color), below)), luminance(below)].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      const large = parseFloat(style.fontSize) >= 24;
      if (ratio < (large ? 3 : 4.5)) wrong.add(`${element.className || element.nodeName} “${text.slice(0, 30)}” ${ratio.toFixed(2)}`);
    }
    return [...wrong];
  },

  // What sticks out to the right or is cut off there, where nobody can scroll to it, or only by scrolling the whole page.
  width() {
    const edge = (around) => {
      if (!around) return innerWidth;
      const { overflowX } = getComputedStyle(around);
      if (/auto|scroll/.test(overflowX)) return Infinity;
      return Math.min(/hidden|clip/.test(overflowX) ? around.getBoundingClientRect().right : Infinity, edge(around.parentElement));
    };
    const wrong = [...document.body.querySelectorAll("*")].filter((element) => {
      const { right, width } = element.getBoundingClientRect();
      return width && !element.closest(".unseen, thead") && right > edge(element.parentElement) + 1;
    });
    const over = document.documentElement.scrollWidth - innerWidth;
    return [...(over > 0 ? [`the page is ${over} px too wide`] : []), ...wrong.slice(0, 5).map((e) => e.outerHTML.slice(0, 90))];
  },

  // What the keyboard does not reach, what does not show that it has the focus, and what is covered then. A key must have
  // been pressed before: only then do browsers show it.
  focus() {
    const wrong = document.activeElement.matches("a.skip") ? [] : ["the key leads to something before the skip link"];
    for (const element of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")) {
      if (!element.checkVisibility({ visibilityProperty: true })) continue;
      element.focus();
      const { outlineStyle, outlineWidth } = getComputedStyle(element);
      const [{ left, top, width, height }] = element.getClientRects();
      const above = document.elementFromPoint(left + width / 2, top + height / 2);
      const seen = element.matches(":focus-visible") && outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
      const covered = !above || !(element.contains(above) || above.contains(element));
      const what = document.activeElement !== element ? "not reached" : !seen ? "not shown" : covered ? "covered" : "";
      if (what) wrong.push(`${what}: ${element.outerHTML.slice(0, 90)}`);
    }
    return wrong;
  },

  // What a screen reader would have no words for.
  names() {
    const wrong = [];
    const check = (selector, holds, what) => {
      for (const element of document.querySelectorAll(selector)) {
        if (element.checkVisibility() && !holds(element)) wrong.push(`${what}: ${element.outerHTML.slice(0, 90)}`);
      }
    };
    const labelled = (e) => e.getAttribute("aria-label") || document.getElementById(e.getAttribute("aria-labelledby"));
    check("a, button, summary", (e) => e.textContent.trim() || labelled(e), "no text");
    check("input:not([type=hidden]), select, textarea", (e) => e.labels.length || labelled(e), "no label");
    check("table", (e) => e.caption && e.caption.textContent.trim(), "no caption");
    check("th", (e) => e.hasAttribute("scope"), "no scope");
    check("nav, section, dialog, svg[role=img], progress", labelled, "no name");
    check("svg:not([role=img])", (e) => e.getAttribute("aria-hidden") === "true", "neither picture nor hidden");
    check("[tabindex]", (e) => e.tabIndex <= 0, "its own order");
    for (const one of ["main", "h1", "title"]) {
      if (document.querySelectorAll(one === "title" ? "head > title" : one).length !== 1) wrong.push(`not one ${one}`);
    }
    const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter((h) => h.checkVisibility()).map((h) => +h.nodeName[1]);
    levels.forEach((level, i) => i && level > levels[i - 1] + 1 && wrong.push(`heading ${level} after ${levels[i - 1]}`));
    const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
    wrong.push(...ids.filter((id, i) => !id || ids.indexOf(id) !== i).map((id) => `id “${id}” twice or empty`));
    const focusable = document.querySelector("a.skip");
    if (!focusable || !document.querySelector(focusable.getAttribute("href"))) wrong.push("no skip link");
    if (document.documentElement.lang !== "en") wrong.push("no language");
    return wrong;
  },
})
