// Elements, numbers and files: what all parts of the page use.

const SVG = "http://www.w3.org/2000/svg";
const LEAST_WIDTH = 160; // pixels; below, nothing can be drawn that anybody could read

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") node.toggleAttribute(name, value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// Text is always appended as text: what a data set or an algorithm is called can never become markup.
const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const svgText = (text, x, y, anchor, kind = "tick") => svg("text", { class: kind, x, y, "text-anchor": anchor }, text);

const find = (selector, root = document) => root.querySelector(selector);
const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];

const sum = (values) => values.reduce((total, value) => total + value, 0);
const ascending = (one, other) => one - other;
const within = (value, low, high) => Math.max(low, Math.min(high, value));

// Three decimals, or three significant digits: as the tables print numbers.
function numberText(value, significant = false) {
  if (value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size >= 1e6) return value.toExponential(0).replace(/e\+(\d)$/, "e+0$1").replace("-", "−");
  const digits = !significant ? 3 : size < 10 ? 2 : size < 100 ? 1 : 0;
  const text = value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return text.replace("-", Number(text.replaceAll(",", "")) === 0 ? "" : "−");
}

const whole = (number) => number.toLocaleString("en");
const plural = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

async function unpack(id) {
  const bytes = Uint8Array.from(atob(find(`#${id}`).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  html("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// A spreadsheet computes a text that begins like a formula; with an apostrophe it stays text. Numbers stay numbers.
const asText = (text) => (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text);
const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
const csvCell = (text) => quoted(asText(text));
const csvText = (rows) => rows.map((row) => `${row.map((cell) => csvCell(String(cell))).join(",")}\n`).join("");

const placeTitle = (place) => (place.alpha === "–" ? place.dataset : `${place.dataset}, α = ${place.alpha}`);

// Options of a list; what was chosen stays chosen where it is still there.
function offer(list, options) {
  const wanted = list.selectedOptions[0]?.textContent;
  list.replaceChildren(...options.map(([value, text]) => html("option", { value }, text)));
  const same = [...list.options].find((option) => option.textContent === wanted);
  if (same) same.selected = true;
}

// Two lists to choose a data set and an α from; one with a single entry stays out of sight.
function placePicker(places, chosen) {
  const names = [...new Set(places.map((place) => place.dataset))];
  const dataset = html("select", { onchange: start }, ...names.map((name) => html("option", {}, name)));
  const alpha = html("select", { onchange: () => chosen(Number(alpha.value)) });
  const alphaLabel = html("label", {}, "α ", alpha);
  const usual = (place) => !place.partition || place.partition === "dirichlet";
  function start() {
    const here = places.map((place, at) => [at, place]).filter(([, place]) => place.dataset === dataset.value);
    offer(alpha, here.map(([at, place]) => [at, usual(place) ? place.alpha : `${place.alpha}, ${place.partition}`]));
    alphaLabel.hidden = here.length < 2;
    chosen(Number(alpha.value));
  }
  return { elements: [html("label", { hidden: names.length < 2 }, "data set ", dataset), alphaLabel], start };
}

// A table behind a "details" that is made when somebody opens it.
function dataTable(title, rows) {
  const box = html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title });
  const details = html("details", { class: "data", ontoggle: refresh }, html("summary", {}, title), box);
  const cell = (text, at) => html(at ? "td" : "th", at ? { class: "number" } : { scope: "row" }, String(text));
  function refresh() {
    if (!details.open) return;
    const [head, ...body] = rows();
    const heads = html("tr", {}, ...head.map((text) => html("th", { scope: "col" }, text)));
    const lines = body.map((row) => html("tr", {}, ...row.map(cell)));
    box.replaceChildren(html("table", {}, html("thead", {}, heads), html("tbody", {}, ...lines)));
  }
  return { element: details, refresh };
}
