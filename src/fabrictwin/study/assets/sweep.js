// The response of a figure over one or two keys of a sweep: a curve, a matrix where values recur, else points.
const { keys, figures, columns, fewer } = JSON.parse(document.getElementById("data").textContent);
const NONE = "–", MOST = 40; // values of a key beyond which a matrix would be dust
const choose = (id) => document.getElementById(id);
const fill = (id, names) => choose(id).append(...names.map((name) => new Option(name, name)));
const SVG = "http://www.w3.org/2000/svg";
function make(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
const title = (node, text) => { node.prepend(make("title", {}, text)); return node; };
const said = (value) => (typeof value === "number" ? Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 }) : String(value));
const order = (a, b) => {
  const x = parseFloat(a), y = parseFloat(b);
  return isNaN(x) || isNaN(y) || x === y ? String(a).localeCompare(String(b), "en", { numeric: true }) : x - y;
};
const distinct = (key) => [...new Set(columns[key])].sort(order);
const of = { median: (v) => v[(v.length - 1) >> 1], least: (v) => v[0], greatest: (v) => v[v.length - 1] };
const gather = (places, figure) => {
  const found = places.map((i) => columns[figure][i]).filter((value) => value !== null).sort((a, b) => a - b);
  return found.length ? of[choose("rest").value](found) : null;
};
function groups(key) {
  const found = new Map(distinct(key).map((value) => [value, []]));
  columns[key].forEach((value, i) => found.get(value).push(i));
  return found;
}
const unit = (figure) => { const u = figures.find((one) => one.name === figure).unit; return u ? `${figure}, ${u}` : figure; };

function scale(values, from, to) {
  const numbers = values.map((value) => parseFloat(value));
  const even = numbers.some(isNaN);
  if (even) return { at: (value) => from + (to - from) * (values.length < 2 ? 0.5 : values.indexOf(value) / (values.length - 1)), ticks: values };
  const low = Math.min(...numbers), high = Math.max(...numbers);
  const log = low > 0 && high / low >= 8, f = log ? Math.log : (x) => x;
  const at = (value) => (high === low ? (from + to) / 2 : from + ((to - from) * (f(parseFloat(value)) - f(low))) / (f(high) - f(low)));
  const step = Math.max(1, Math.ceil(values.length / 8));
  return { at, ticks: values.length <= 12 ? values.filter((_, i) => i % step === 0 || i === values.length - 1) : [values[0], values[values.length >> 1], values[values.length - 1]] };
}

function curve(figure, key) {
  const found = [...groups(key)].map(([value, places]) => [value, gather(places, figure)]).filter(([, y]) => y !== null);
  if (!found.length) return null;
  const wide = 720, tall = 340, svg = make("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `${figure} over ${key}` });
  const xs = scale(found.map(([value]) => value), 84, wide - 24);
  const heights = found.map(([, y]) => y), low = Math.min(...heights), high = Math.max(...heights), pad = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  const y = (value) => tall - 56 - ((tall - 76) * (value - low + pad)) / (high - low + 2 * pad);
  for (const value of [low, (low + high) / 2, high]) {
    svg.append(make("line", { class: "grid", x1: 84, x2: wide - 24, y1: y(value), y2: y(value) }), make("text", { x: 76, y: y(value) + 4, "text-anchor": "end" }, said(value)));
  }
  for (const tick of xs.ticks) svg.append(make("text", { x: xs.at(tick), y: tall - 36, "text-anchor": anchor(xs.at(tick), wide) }, said(tick)));
  svg.append(make("polyline", { class: "mark", style: "stroke:var(--compute)", points: found.map(([value, h]) => `${xs.at(value)},${y(h)}`).join(" ") }));
  for (const [value, h] of found) svg.append(title(make("circle", { cx: xs.at(value), cy: y(h), r: 4, style: "fill:var(--compute)" }), `${key} ${value}: ${said(h)}`));
  svg.append(make("text", { x: (wide + 60) / 2, y: tall - 10, "text-anchor": "middle" }, key), make("text", { transform: `translate(14 ${tall / 2}) rotate(-90)`, "text-anchor": "middle" }, unit(figure)));
  return svg;
}

const anchor = (x, wide) => (x > wide - 60 ? "end" : "middle");
function caption(text) {
  const line = document.createElement("p");
  line.className = "soft small";
  line.textContent = text;
  return line;
}

const shade = (share) => `fill:rgba(var(--heat),${(0.06 + 0.94 * share).toFixed(3)})`;
function matrix(figure, across, down) {
  const xs = distinct(across), ys = distinct(down), cells = new Map();
  columns[across].forEach((x, i) => { const key = JSON.stringify([x, columns[down][i]]); cells.set(key, [...(cells.get(key) ?? []), i]); });
  const found = xs.map((x) => ys.map((y) => gather(cells.get(JSON.stringify([x, y])) ?? [], figure)));
  const all = found.flat().filter((value) => value !== null), low = Math.min(...all), high = Math.max(...all);
  const left = 16 + 8 * Math.max(...ys.map((y) => said(y).length), 4), cell = Math.max(30, Math.min(76, 640 / xs.length)), row = 34;
  const wide = left + cell * xs.length + 12, tall = 24 + row * ys.length + 4;
  const svg = make("svg", { viewBox: `0 0 ${wide} ${tall}`, style: `max-width:${wide}px`, role: "img", "aria-label": `${figure} over ${across} and ${down}` });
  xs.forEach((x, i) => svg.append(make("text", { x: left + cell * (i + 0.5), y: 16, "text-anchor": "middle" }, said(x))));
  ys.forEach((y, j) => {
    svg.append(make("text", { x: left - 8, y: 24 + row * (j + 0.5) + 4, "text-anchor": "end" }, said(y)));
    xs.forEach((x, i) => {
      const value = found[i][j], share = value === null || high === low ? 0 : (value - low) / (high - low);
      const box = make("g", {});
      box.append(make("rect", { x: left + cell * i + 1, y: 24 + row * j + 1, width: cell - 2, height: row - 2, rx: 3, style: value === null ? "fill:none;stroke:var(--line)" : shade(share) }));
      if (cell >= 48 || value === null) box.append(make("text", { class: share > 0.6 ? "on over" : "on", x: left + cell * (i + 0.5), y: 24 + row * (j + 0.5) + 4, "text-anchor": "middle" }, value === null ? NONE : said(value)));
      svg.append(title(box, `${across} ${x}, ${down} ${y}: ${value === null ? "no answer" : said(value)}`));
    });
  });
  return [svg, caption(`${unit(figure)}: ${across} across, ${down} down`)];
}

function points(figure, across, down) {
  const known = columns[figure].map((_, i) => i).filter((i) => columns[figure][i] !== null);
  const wide = 720, tall = 420, svg = make("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `${figure} over ${across} and ${down}` });
  const xs = scale(distinct(across), 84, wide - 24), ys = scale(distinct(down), tall - 60, 20);
  const all = known.map((i) => columns[figure][i]), low = Math.min(...all), high = Math.max(...all);
  for (const tick of ys.ticks) svg.append(make("text", { x: 76, y: ys.at(tick) + 4, "text-anchor": "end" }, said(tick)));
  for (const tick of xs.ticks) svg.append(make("text", { x: xs.at(tick), y: tall - 38, "text-anchor": anchor(xs.at(tick), wide) }, said(tick)));
  for (const i of known) {
    const value = columns[figure][i];
    svg.append(title(make("circle", { cx: xs.at(columns[across][i]), cy: ys.at(columns[down][i]), r: 7, style: `${shade(high === low ? 1 : (value - low) / (high - low))};stroke:var(--faint)` }), `${across} ${columns[across][i]}, ${down} ${columns[down][i]}: ${said(value)}`));
  }
  svg.append(make("text", { x: (wide + 60) / 2, y: tall - 12, "text-anchor": "middle" }, `${across}; shade: ${unit(figure)}, ${said(low)} to ${said(high)}`), make("text", { transform: `translate(14 ${tall / 2}) rotate(-90)`, "text-anchor": "middle" }, down));
  return svg;
}

function draw() {
  const figure = choose("figure").value, across = choose("across").value, down = choose("down").value;
  const one = down === NONE || down === across;
  const fits = one || (distinct(across).length <= MOST && distinct(down).length <= MOST && distinct(across).length * distinct(down).length <= 2 * columns[across].length);
  const drawn = columns[figure] === undefined ? null : one ? curve(figure, across) : fits ? matrix(figure, across, down) : points(figure, across, down);
  choose("response").replaceChildren(...[drawn ?? "No point has this figure."].flat());
}

fill("figure", figures.map((one) => one.name));
fill("across", keys);
fill("down", [NONE, ...keys]);
fill("rest", Object.keys(of));
if (fewer.length) choose("figure").value = fewer[0];
if (keys.length > 1) choose("down").value = keys[1];
choose("rest").value = fewer.length ? "least" : "greatest";
for (const id of ["figure", "across", "down", "rest"]) choose(id).addEventListener("change", draw);
draw();
