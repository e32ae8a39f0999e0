// Values under the pointer and under the arrow keys, and tables sorted by their heads. The page is whole without it.
"use strict";
for (const chart of document.querySelectorAll(".chart")) {
  const source = chart.querySelector('script[type="application/json"]');
  if (!source) continue;
  const data = JSON.parse(source.textContent);
  const plot = chart.querySelector(".plot"), canvas = chart.querySelector(".canvas");
  const cursor = canvas.appendChild(element("div", "cursor")), tip = canvas.appendChild(element("div", "tip"));
  const dots = data.series.map(one => canvas.appendChild(element("b", "dot " + one.colour)));
  const last = data.labels.length - 1;
  let at = -1;

  const show = next => {
    at = Math.max(0, Math.min(last, next));
    const left = 100 * at / Math.max(1, last);
    cursor.style.left = left + "%";
    tip.replaceChildren(element("strong", "", data.labels[at]));
    data.series.forEach((one, i) => {
      const row = tip.appendChild(element("div", ""));
      row.append(element("i", "key " + one.colour), element("span", "", one.name), element("em", "", one.values[at]));
      const height = one.heights[at];
      dots[i].style.display = height === null ? "none" : "";
      dots[i].style.left = left + "%";
      dots[i].style.bottom = height + "%";
    });
    tip.style.left = left + "%";
    tip.classList.toggle("flip", left > 55);
    plot.classList.add("live");
  };
  const hide = () => { plot.classList.remove("live"); at = -1; };

  canvas.addEventListener("pointermove", event => {
    const box = canvas.getBoundingClientRect();
    show(Math.round((event.clientX - box.left) / box.width * last));
  });
  canvas.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", event => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    show(at < 0 && by === -1 ? last : at + by);
  });
}

for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("th").forEach((head, column) => {
    const button = element("button", "", head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "descending";
      table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "ascending" : "descending");
      const body = table.tBodies[0];
      const value = row => row.cells[column].textContent.trim();
      const rows = [...body.rows].sort((a, b) => compare(value(a), value(b)) * (down ? 1 : -1));
      body.append(...rows);
    });
  });
}

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll(".letter")) details.open = true;
});

function compare(a, b) {
  const [x, y] = [amount(a), amount(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
}

// "1.5 min", "12.3 k", "99.2 %", "4.1 MB" as numbers that can be compared within one column.
function amount(text) {
  const found = /^[><]?\s*(-?[\d,.]+)\s*(ms|s|min|h|d|k|M|G|B|KB|MB|GB|TB|%|\/s)?/.exec(text);
  if (!found || /^\d{4}-\d\d/.test(text)) return NaN;
  const unit = { ms: 1e-3, min: 60, h: 3600, d: 86400, k: 1e3, M: 1e6, G: 1e9, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
  return parseFloat(found[1].replaceAll(",", "")) * (unit[found[2]] ?? 1);
}

function element(kind, name, text) {
  const made = document.createElement(kind);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}
