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

  // What sticks out to the right, where nobody can scroll to it, or only by scrolling the whole page.
  width() {
    const scrolls = (element) => element && (/auto|scroll/.test(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
    const wrong = [...document.body.querySelectorAll("*")].filter((element) => {
      const { right, width } = element.getBoundingClientRect();
      return width && right > innerWidth + 1 && !element.closest(".unseen, thead") && !scrolls(element.parentElement);
    });
    const over = document.documentElement.scrollWidth - innerWidth;
    return [...(over > 0 ? [`the page is ${over} px too wide`] : []), ...wrong.slice(0, 5).map((e) => e.outerHTML.slice(0, 90))];
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
