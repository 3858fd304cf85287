"use strict";
const all = (selector, from = document) => [...from.querySelectorAll(selector)];

// Points say their values: the words are in the page as titles, which browsers show late and touch
// screens not at all.
const tip = document.getElementById("tip");

function say(words, x, y) {
  tip.textContent = words;
  tip.hidden = false;
  const width = document.documentElement.clientWidth;
  const left = Math.max(4, Math.min(x + 12, width - tip.offsetWidth - 4));
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${Math.max(4, y - tip.offsetHeight - 10) + scrollY}px`;
}

function hush() { tip.hidden = true; }

function listen(drawing) {
  for (const title of all("title", drawing)) {
    const owner = title.parentNode;
    owner.setAttribute("aria-label", title.textContent);
    if (owner !== drawing) owner.dataset.words = title.textContent;
    title.remove();
  }
  if (drawing.hasAttribute("aria-labelledby")) drawing.removeAttribute("aria-labelledby");
  const words = (event) => event.target.closest("[data-words]")?.dataset.words;
  const show = (event) => {
    const text = words(event);
    if (text) say(text, event.clientX, event.clientY); else hush();
  };
  drawing.addEventListener("pointermove", show);
  drawing.addEventListener("pointerdown", show);
  drawing.addEventListener("pointerleave", hush);
  drawing.addEventListener("focusin", (event) => {
    const box = event.target.getBoundingClientRect();
    const text = words(event) || event.target.getAttribute("aria-label");
    if (text) say(text, box.right, box.top);
  });
  drawing.addEventListener("focusout", hush);
}
all("svg.figure").forEach(listen);

// Tables sort by a click on a heading: numbers from the highest, texts from A, then the other way.
function key(cell) {
  const text = cell.dataset.v ?? cell.firstChild?.textContent.trim() ?? "";
  const number = Number(text);
  return text !== "" && Number.isFinite(number) ? number : text;
}

function closeRuns(table) {
  all("tr.detail", table).forEach((row) => row.remove());
  all('[aria-expanded="true"]', table).forEach((button) => button.setAttribute("aria-expanded", "false"));
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return 1;
  if (typeof b === "number") return -1;
  return a.localeCompare(b, "en", { numeric: true });
}

function sort(heading) {
  const table = heading.closest("table"), place = heading.cellIndex;
  const numeric = heading.classList.contains("n"), current = heading.ariaSort;
  const up = current ? current === "descending" : !numeric;
  all("th[aria-sort]", table).forEach((other) => { other.ariaSort = null; });
  heading.ariaSort = up ? "ascending" : "descending";
  closeRuns(table);
  const rows = all("tbody tr", table).map((row) => [key(row.cells[place]), row]);
  const missing = (value) => value === "–";
  rows.sort(([a], [b]) => missing(a) - missing(b) || (up ? compare(a, b) : compare(b, a)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}
all("thead button").forEach((button) => button.addEventListener("click", () => sort(button.parentNode)));

// Filters keep the rows that hold every word.
for (const input of all(".filter input")) {
  const rows = all("tbody tr", input.closest("figure"));
  const texts = rows.map((row) => row.textContent.toLowerCase());
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    closeRuns(input.closest("figure"));
    rows.forEach((row, i) => { row.hidden = !words.every((word) => texts[i].includes(word)); });
  });
}

// A run opens its recipe and its curves.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function element(parent, tag, attributes = {}, text = null) {
  const made = parent.namespaceURI === SVG || tag === "svg"
    ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

function chart(parent, title, [steps, values]) {
  if (!steps.length) return;
  const svg = element(parent, "svg", { class: "figure", viewBox: "0 0 360 220", role: "img" });
  const low = Math.min(...values), high = Math.max(...values);
  const x = (step) => 50 + 296 * (step - steps[0]) / (steps.at(-1) - steps[0] || 1);
  const y = (value) => 184 - 154 * (value - low) / (high - low || 1);
  svg.setAttribute("aria-label", `${title}: ${steps.length} points, from ${values[0]} to ${values.at(-1)}`);
  element(svg, "text", { x: 0, y: 13 }, title);
  for (const value of high > low ? [low, high] : [low]) {
    element(svg, "line", { class: "grid", x1: 50, x2: 346, y1: y(value), y2: y(value) });
    element(svg, "text", { x: 43, y: y(value) + 4, "text-anchor": "end" }, value);
  }
  for (const step of steps.length > 1 ? [steps[0], steps.at(-1)] : steps) {
    element(svg, "text", { x: x(step), y: 206, "text-anchor": "middle" }, step.toLocaleString("en"));
  }
  const line = element(svg, "g", { class: "series m1" });
  element(line, "polyline", { points: steps.map((step, i) => `${x(step)},${y(values[i])}`).join(" ") });
  steps.forEach((step, i) => {
    const point = element(line, "g", { class: "point" });
    element(point, "circle", { cx: x(step), cy: y(values[i]), r: 2.5 });
    element(point, "title", {}, `step ${step.toLocaleString("en")}: ${values[i]}`);
  });
  listen(svg);
}

function open(row, run) {
  const next = row.nextElementSibling;
  const button = row.querySelector("button");
  if (next?.classList.contains("detail")) {
    button.setAttribute("aria-expanded", "false");
    return next.remove();
  }
  button.setAttribute("aria-expanded", "true");
  const [settings, score, loss, best, warnings] = run;
  const detail = document.createElement("tr");
  detail.className = "detail";
  const box = element(element(detail, "td", { colspan: row.cells.length }), "div");
  for (const warning of warnings) element(box, "p", {}, `Warning: ${warning}`);
  const recipe = Object.entries({ ...settings, ...data.common }).filter(([, value]) => value !== null);
  const lines = recipe.map(([name, value]) => `${name}: ${JSON.stringify(value)}`);
  element(box, "pre", {}, lines.join("\n"));
  chart(box, best === null ? "validation score" : `validation score; step ${best} was tested`, score);
  chart(box, "loss", loss);
  row.after(detail);
}

all("#runs tbody tr").forEach((row, i) => {
  const cell = row.cells[0], button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  button.append(...cell.childNodes);
  cell.append(button);
  button.addEventListener("click", () => open(row, data.runs[i]));
});
