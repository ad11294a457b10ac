// Elements, and figures in words. Text is only ever set as text.
export const find = (id) => document.getElementById(id);

/** An element: `el("p", { class: "soft", onclick: f }, "text", child)`. */
export function el(name, given = {}, ...children) {
  const node = document.createElement(name);
  set(node, given);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(name, given = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  set(node, given);
  node.append(...children.flat());
  return node;
}

function set(node, given) {
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || (value === false && !key.startsWith("aria-"))) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(node.style, value);
    else if (key === "value") node.value = value;
    else if (key === "colour") node.style.background = `var(--${value}, var(--other))`;
    else node.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : value);
  }
}

const round = (value, digits = 4) => Number(value.toPrecision(digits));
export const number = (value, digits = 4) =>
  (Math.abs(value) >= 1000 ? Math.round(value) : round(value, digits)).toLocaleString("en", { maximumSignificantDigits: 12 });

export function time(ps) {
  if (!ps) return "0";
  const size = Math.abs(ps);
  const [factor, unit] = size >= 1e12 ? [1e12, "s"] : size >= 1e9 ? [1e9, "ms"] : size >= 1e6 ? [1e6, "µs"] : size >= 1e3 ? [1e3, "ns"] : [1, "ps"];
  return `${ps < 0 ? "−" : ""}${round(size / factor)} ${unit}`;
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
  return `${round(count, 3)} ${units[at]}`;
}

export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)}%`;
export const signed = (share) => (share > 0 ? "+" : share < 0 ? "−" : "±") + `${Math.abs(100 * share).toFixed(Math.abs(share) < 0.1 ? 2 : 1)}%`;

/** A table: heads are texts or [text, true] for figures; cells are texts, nodes, or [text or node, true]. */
export function table(heads, rows, given = {}) {
  const cell = (name) => (one) => (Array.isArray(one) ? el(name, { class: "n" }, one[0]) : el(name, {}, one));
  return el("div", { class: "scroll", ...scrollable(given.label) },
    el("table", {}, el("thead", {}, el("tr", {}, heads.map(cell("th")))), el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell("td")))))));
}
const scrollable = (label) => (label ? { tabindex: "0", role: "region", "aria-label": label } : {});

export const key = (category) => el("span", { class: "key", colour: category });
export const meter = (share) => el("span", { class: "meter wide" }, el("i", { style: { width: `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%` } }));
export const note = (text) => el("p", { class: "soft small" }, text);

export function tile(name, value, unit = "", under = "") {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value, " ", el("span", {}, unit), under && el("div", { class: "under" }, under)));
}
export const tiles = (...items) => el("dl", { class: "answer" }, items);

/** Make a row of tabs work: click, arrows, Home and End. `changed` is told the id that is shown. */
export function tabs(list, changed) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const show = (tab, focus) => {
    for (const one of all) {
      const on = one === tab;
      one.setAttribute("aria-selected", on);
      one.tabIndex = on ? 0 : -1;
      find(one.getAttribute("aria-controls")).hidden = !on;
    }
    if (focus) tab.focus();
    changed(tab.id);
  };
  for (const tab of all) {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", (event) => {
      const at = all.indexOf(tab), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const next = step ? all[(at + step + all.length) % all.length] : event.key === "Home" ? all[0] : event.key === "End" ? all[all.length - 1] : null;
      if (next) { event.preventDefault(); show(next, true); }
    });
  }
  return (id) => show(find(id));
}

export function copier(text) {
  const button = el("button", { onclick: async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Select it and copy"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } }, "Copy");
  return button;
}
