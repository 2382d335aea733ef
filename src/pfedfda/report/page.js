"use strict";
// The page tells everything without this: it adds sorting, and a legend that highlights and hides.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // The legend: rest on a method to highlight it, press it to hide or show it everywhere.
  const legend = document.querySelector(".legend");
  const parts = (method) => all(`[data-m="${method}"]`);
  const highlight = (method) => {
    all(".hot").forEach((part) => part.classList.remove("hot"));
    document.body.classList.toggle("focused", method !== null);
    if (method !== null) parts(method).forEach((part) => part.classList.add("hot"));
  };
  const show = (button, shown) => {
    button.setAttribute("aria-pressed", shown);
    parts(button.parentElement.dataset.m).forEach((part) => part.classList.toggle("off", !shown));
  };
  const items = all("li", legend);
  const buttons = items.map((item) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...item.childNodes);
    button.setAttribute("aria-pressed", "true");
    item.append(button);
    button.addEventListener("click", () => {
      show(button, button.getAttribute("aria-pressed") !== "true");
      highlight(null);
    });
    button.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse" && button.getAttribute("aria-pressed") === "true") {
        highlight(item.dataset.m);
      }
    });
    button.addEventListener("focus", () => {
      if (button.matches(":focus-visible")) highlight(item.dataset.m);
    });
    for (const end of ["pointerleave", "blur"]) button.addEventListener(end, () => highlight(null));
    return button;
  });
  if (items.length > 2) {
    for (const [text, shown] of [["all", true], ["none", false]]) {
      const item = document.createElement("li");
      const button = document.createElement("button");
      item.className = "all";
      button.type = "button";
      button.textContent = text;
      button.addEventListener("click", () => buttons.forEach((other) => show(other, shown)));
      item.append(button);
      legend.append(item);
    }
  }
  // A line, a bar or a row highlights its method too; a tap does what the pointer does.
  if (items.length > 1) {
    const owner = (event) => event.target.closest("svg.chart [data-m], .bars [data-m]");
    document.addEventListener("pointerover", (event) => {
      const part = owner(event);
      if (part) highlight(part.dataset.m);
      else if (!event.target.closest(".legend")) highlight(null);
    });
  }

  // Tables: press a heading to sort by it, numbers from the largest, and again to turn round.
  for (const table of all("table.sortable")) {
    const headings = all("thead th", table);
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const before = heading.getAttribute("aria-sort");
        const numeric = column > 0;
        const down = before ? before === "ascending" : numeric;
        headings.forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => {
          const cell = row.cells[column];
          return cell.dataset.v === undefined ? cell.textContent : cell.dataset.v;
        };
        const compare = (left, right) => {
          const [a, b] = [key(left), key(right)];
          if (a === "" || b === "") return (a === "") - (b === ""); // nothing is always last
          const order = a.localeCompare(b, "en", { numeric: true });
          const [x, y] = [Number(a), Number(b)];
          const either = Number.isNaN(x) || Number.isNaN(y) ? order : x - y;
          return down ? -either : either;
        };
        const body = table.tBodies[0];
        body.append(...[...body.rows].sort(compare));
      });
    });
  }
})();
