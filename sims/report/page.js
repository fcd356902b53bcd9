// What makes the page pleasant. Without it, everything can be read all the same.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const SVG = "http://www.w3.org/2000/svg";

  function made(name, properties = {}, ...children) {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
  }

  // --- theme: the system's, until somebody chooses another ---

  function setUpTheme() {
    const root = document.documentElement, button = document.getElementById("theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const show = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
    try {  // some browsers keep nothing for pages from disk
      const kept = localStorage.getItem("secagg-theme");
      if (kept === "dark" || kept === "light") root.dataset.theme = kept;
    } catch { /* then the choice lasts as long as the page */ }
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("secagg-theme", root.dataset.theme); } catch { /* as above */ }
      show();
    });
    system.addEventListener("change", show);
    show();
    button.hidden = false;
  }

  // --- plots: values at the pointer, or where the arrow keys lead ---

  class Values {
    constructor(figure) {
      this.figure = figure;
      this.svg = figure.querySelector(".plot");
      this.stops = this.svg.dataset.stops.split(" ").map(Number);
      this.along = this.svg.dataset.along;
      this.names = all(".numbers thead th", figure).slice(1).map((head) => head.textContent);
      this.rows = all(".numbers tbody tr", figure);
      this.tip = made("div", { className: "tip", hidden: true });
      this.tip.setAttribute("role", "status");
      this.cursor = this.svg.querySelector(".cursor");
      this.dots = this.svg.querySelector(".dots");
      this.at = null;
      figure.querySelector(".canvas").append(this.tip);
      this.svg.setAttribute("tabindex", "0");
      this.listen();
    }

    listen() {
      const svg = this.svg;
      svg.addEventListener("pointermove", (event) => this.show(this.nearest(event)));
      svg.addEventListener("pointerdown", (event) => this.show(this.nearest(event)));
      svg.addEventListener("pointerleave", () => this.hide());
      svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) this.show(this.at ?? 0); });
      svg.addEventListener("blur", () => this.hide());
      svg.addEventListener("keydown", (event) => this.key(event));
    }

    key(event) {
      const last = this.stops.length - 1, at = this.at ?? -1;
      const moves = {
        ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last,
        PageDown: at + 10, PageUp: at - 10,
      };
      if (event.key === "Escape") this.hide();
      else if (event.key in moves) {
        event.preventDefault();
        this.show(Math.min(last, Math.max(0, moves[event.key])));
      }
    }

    nearest(event) {
      const box = this.svg.getBoundingClientRect(), view = this.svg.viewBox.baseVal;
      const place = this.along === "x"
        ? ((event.clientX - box.left) / box.width) * view.width
        : ((event.clientY - box.top) / box.height) * view.height;
      let best = 0;
      this.stops.forEach((stop, at) => {
        if (Math.abs(stop - place) < Math.abs(this.stops[best] - place)) best = at;
      });
      return best;
    }

    visible() {
      const off = new Set(all(".legend [aria-pressed=false]", this.figure).map((each) => each.parentNode.dataset.series));
      return this.names.map((name, at) => [name, at]).filter(([name]) => !off.has(name));
    }

    show(at) {
      const row = this.rows[at], cells = all("td", row);
      this.at = at;
      this.tip.replaceChildren(made("b", { textContent: row.querySelector("th").textContent }));
      for (const [name, place] of this.visible()) {
        const text = cells[place].textContent;
        if (text !== "–") this.tip.append(made("span", {}, made("i", { textContent: name }), made("b", { textContent: text })));
      }
      this.tip.hidden = false;
      this.point(at, cells);
      this.put(at);
    }

    point(at, cells) {
      const view = this.svg.viewBox.baseVal, stop = this.stops[at];
      this.dots.replaceChildren();
      if (this.along !== "x") return;
      const [low, high, start, end] = this.svg.dataset.scale.split(" ").map(Number);
      this.cursor.setAttribute("d", `M${stop} ${end}V${start}`);
      this.cursor.style.visibility = "visible";
      for (const [name, place] of this.visible()) {
        const value = parseFloat(cells[place].textContent.replace(/,/g, ""));
        const group = all(".series", this.svg).find((each) => each.dataset.series === name);
        if (!Number.isFinite(value) || !group || group.querySelector("rect")) continue;
        const dot = document.createElementNS(SVG, "circle");
        dot.setAttribute("cx", stop);
        dot.setAttribute("cy", start + ((value - low) / (high - low)) * (end - start));
        dot.setAttribute("r", Math.max(3.5, view.width / 110));
        dot.setAttribute("class", group.getAttribute("class").replace("series", ""));
        this.dots.append(dot);
      }
    }

    put(at) {
      const box = this.svg.getBoundingClientRect(), view = this.svg.viewBox.baseVal;
      const scale = box.width / view.width, stop = this.stops[at] * scale;
      const [x, y] = this.along === "x" ? [stop + 14, 26 * scale] : [box.width * 0.4, stop + 14];
      const flipped = this.along === "x" && x + this.tip.offsetWidth > box.width;
      const left = flipped ? stop - 14 - this.tip.offsetWidth : Math.min(x, box.width - this.tip.offsetWidth);
      this.tip.style.transform = `translate(${Math.max(0, left)}px, ${y}px)`;
    }

    hide() {
      this.tip.hidden = true;
      this.cursor.style.visibility = "hidden";
      this.dots.replaceChildren();
    }
  }

  // --- legends: every name is a switch ---

  function setUpLegend(figure) {
    for (const entry of all(".legend li", figure)) {
      const button = made("button", { type: "button" }, ...entry.childNodes);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") === "false";
        button.setAttribute("aria-pressed", String(on));
        for (const group of all(".plot .series", figure)) {
          if (group.dataset.series === entry.dataset.series) group.classList.toggle("off", !on);
        }
      });
      entry.append(button);
    }
  }

  // --- tables: sorted by any column, and folded if they are long ---

  function ordered(rows, column, descending) {
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
    };
    const compare = (a, b) => {
      if (typeof a === "number" && typeof b === "number") return a - b;
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
      return a.localeCompare(b, "en", { numeric: true });
    };
    return rows.map((row) => [key(row), row]).sort(([a], [b]) => (descending ? -1 : 1) * compare(a, b)).map(([, row]) => row);
  }

  function setUpTable(table) {
    const body = table.tBodies[0], heads = all("thead th", table), few = Number(table.dataset.fold);
    let folded = Boolean(few);
    const fold = () => all("tr", body).forEach((row, at) => { row.hidden = folded && at >= few; });
    heads.forEach((head, column) => {
      if (!head.textContent) return;
      const button = made("button", { type: "button" }, ...head.childNodes);
      button.addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        body.append(...ordered(all("tr", body), column, descending));
        fold();
      });
      head.append(button);
    });
    if (few) {
      const count = body.rows.length.toLocaleString("en");
      const button = made("button", { type: "button", className: "more" });
      const show = () => {
        button.textContent = folded ? `Show all ${count} ${table.dataset.noun}` : "Show fewer";
        button.setAttribute("aria-expanded", String(!folded));
        fold();
      };
      button.addEventListener("click", () => { folded = !folded; show(); });
      table.after(button);
      show();
    }
  }

  setUpTheme();
  for (const figure of all("figure.figure")) {
    setUpLegend(figure);
    new Values(figure);
  }
  all("table.sortable").forEach(setUpTable);
  all(".hint").forEach((hint) => { hint.hidden = false; });
})();
