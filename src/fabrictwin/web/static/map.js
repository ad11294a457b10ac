// The cluster: utilisation as matrices, a map of racks and switches, and paths hop by hop.
import { get, post } from "./api.js";
import { bytes, el, find, meter, note, percent, table, time } from "./dom.js";
import { onRuns, runs } from "./answer.js";
import { onAnswer, source, spec } from "./spec.js";
import { FabricCanvas } from "./canvas.js";

export function mapView(place, { show }) {
  const canvas = el("canvas", { id: "map", tabindex: "0", role: "application", "aria-label": "map of the cluster; arrow keys move, plus and minus zoom, 0 shows all; search below finds a host or a switch" });
  const said = el("p", { class: "soft small", id: "map-said", role: "status" });
  const chosen = el("div", { id: "chosen", "aria-live": "polite" });
  const word = el("input", { type: "text", id: "find-node", "aria-label": "name of a host or switch", placeholder: "host-0, leaf-0, …", list: "node-names" });
  const names = el("datalist", { id: "node-names" });
  const matrices = el("div", { id: "matrices" });
  const from = el("input", { type: "text", id: "path-from", "aria-label": "from this GPU" }), to = el("input", { type: "text", id: "path-to", "aria-label": "to this GPU" });
  const hops = el("div", { id: "hops", "aria-live": "polite" });
  const map = new FabricCanvas(canvas, (node) => select(node));
  let key = null, matrixRun;

  const locate = () => { const node = map.named(word.value.trim()); if (node) { map.focus(node); select(node); } else said.textContent = `There is no ${word.value}.`; };
  place.replaceChildren(
    el("h2", {}, "Map"), said,
    el("div", { class: "bar" }, word, names, el("button", { onclick: locate }, "Find"), el("span", { class: "grow" }), el("button", { "aria-label": "zoom in", onclick: () => map.zoom(1.6) }, "+"), el("button", { "aria-label": "zoom out", onclick: () => map.zoom(1 / 1.6) }, "−"), el("button", { onclick: () => map.fit() }, "All")),
    el("div", { class: "plot" }, canvas), chosen,
    el("h2", {}, "A path"), el("div", { class: "bar" }, from, el("span", { "aria-hidden": "true" }, "→"), to, el("button", { id: "show-path", onclick: () => path() }, "Show the hops")), hops,
    el("h2", {}, "Utilisation"), matrices,
  );
  word.addEventListener("keydown", (event) => { if (event.key === "Enter") locate(); });

  async function shown() {
    if (place.hidden || !spec.answer || spec.answer.errors.length) return;
    const run = runs.shown && !runs.shown.answer.serving ? runs.shown : null;
    drawMatrices(run);
    const wanted = run ? run.id : JSON.stringify([spec.answer.data?.cluster, spec.answer.data?.faults, spec.base, spec.files]);
    if (wanted === key) { map.draw(); return; }
    key = wanted;
    said.textContent = "Drawing…";
    const begun = performance.now();
    let data;
    try { data = run ? await get(`/api/jobs/${run.id}/map`) : await post("/api/map", source()); } catch (error) { said.textContent = error.message; key = null; return; }
    if (wanted !== key) return;
    map.load(data);
    chosen.replaceChildren();
    const switches = data.switches.count, racks = data.racks.switches.length;
    said.textContent = `${data.hosts.count.toLocaleString("en")} hosts in ${racks.toLocaleString("en")} rack${racks === 1 ? "" : "s"}, ${switches.toLocaleString("en")} switches, drawn in ${Math.round(performance.now() - begun)} ms.${run ? ` Colours: the busiest cable of each, ${run.title}.` : " Run the spec to see what cables carry."}`;
    canvas.dataset.drawn = data.hosts.count;
    names.replaceChildren(...map.someNames(300).map((name) => el("option", { value: name })));
    const last = map.hostName(data.hosts.count - 1);
    if (!map.named(from.value.split("/")[0])) from.value = `${map.hostName(0)}/gpu0`;
    if (!map.named(to.value.split("/")[0])) to.value = `${last}/gpu${Math.max(0, Math.min(3, data.hosts.gpus.at(-1) - 1))}`;
    hops.replaceChildren();
  }

  function select(node) {
    map.select(node);
    if (!node) { chosen.replaceChildren(); return; }
    const near = map.neighbours(node).sort((a, b) => (b.use ?? 0) - (a.use ?? 0) || a.name.localeCompare(b.name, "en", { numeric: true }));
    const actions = node.kind === "host" ? el("div", { class: "bar" }, el("button", { onclick: () => { from.value = `${node.name}/gpu0`; } }, "Path from here"), el("button", { onclick: () => { to.value = `${node.name}/gpu0`; path(); } }, "Path to here")) : "";
    chosen.replaceChildren(el("h3", {}, node.name, " ", el("span", { class: "soft plain" }, node.said)), actions,
      table([near.length > 24 ? `Joined to (24 of ${near.length})` : "Joined to", ["Cables", true], ["Used", true]], near.slice(0, 24).map((one) => [el("button", { class: "name", onclick: () => { map.focus(one.node); select(one.node); } }, one.name), [one.cables, true], [one.use === undefined ? "–" : el("span", {}, meter(one.use), el("span", { class: "figure" }, percent(one.use))), true]])));
  }

  async function path() {
    hops.replaceChildren(note("Looking…"));
    try {
      const found = await post("/api/path", { ...source(), from: from.value.trim(), to: to.value.trim() });
      map.path(found.hops.map((hop) => hop.link));
      hops.replaceChildren(note(`${found.hops.length} hops; an empty message takes ${time(found.latency_ps)}.`),
        table(["Hop", "Kind", ["Rate", true], ["Latency", true], ["Share", true]], found.hops.map((hop) => [el("span", { class: "name" }, hop.link), el("span", { class: `badge ${hop.kind}` }, { nvlink: "NVLink", pcie: "PCIe", cpu: "CPU", infiniband: "InfiniBand", ethernet: "Ethernet" }[hop.kind] ?? hop.kind), [`${Math.round(hop.rate_gbps).toLocaleString("en")} Gb/s`, true], [time(hop.latency_ps), true], [percent(hop.share, 0), true]])));
    } catch (error) { hops.replaceChildren(el("p", { class: "wrong", role: "alert" }, error.message)); }
  }

  async function drawMatrices(run) {
    if (run === matrixRun) return;
    matrixRun = run;
    if (!run) { matrices.replaceChildren(note("Run the spec first, under Answer: the closed form does not count what links carry.")); return; }
    const found = (run.matrices ??= await get(`/api/jobs/${run.id}/matrices`));
    const out = el("div", { id: "cell-links", "aria-live": "polite" });
    const pick = async (at, row, column) => {
      const links = await get(`/api/jobs/${run.id}/matrices/${at}/${row}/${column}`);
      const title = `${found[at].rows[row]} × ${found[at].columns[column]}`;
      out.replaceChildren(el("h3", {}, title), links.length ? table(["Link", ["Used", true], ["Carried", true], ["Rate", true], ""], links.slice(0, 40).map((one) => [el("span", { class: "name" }, one.link), [el("span", {}, meter(one.utilisation), el("span", { class: "figure" }, percent(one.utilisation))), true], [bytes(one.tx_bytes), true], [`${Math.round(one.rate_gbps)} Gb/s`, true], el("button", { onclick: () => { map.path([one.link]); canvas.scrollIntoView({ block: "center" }); } }, "On the map")])) : note("None of its links carried anything."), links.length > 40 ? note(`… and ${links.length - 40} more.`) : "");
      out.querySelector("h3").tabIndex = -1;
      out.querySelector("h3").focus();
    };
    const busy = found.map((one, at) => [one, at]).filter(([one]) => one.greatest.some((row) => row.some((use) => use > 0)));
    matrices.replaceChildren(note("The busiest link of each cell; choose a cell to see its links. Arrow keys move."), ...busy.map(([one, at]) => matrix(one, (row, column) => pick(at, row, column))), busy.length ? out : note("No link of the network carried anything."));
  }
  onAnswer(shown);
  onRuns(shown);
  return { shown };
}

function matrix(one, pick) {
  const top = Math.max(...one.greatest.flat()) || 1;
  const cells = [];
  const rows = one.rows.map((name, r) => el("tr", {}, el("th", { scope: "row" }, name), one.columns.map((column, c) => {
    if (!one.links[r][c]) return el("td", {});
    const use = one.greatest[r][c], share = use / top;
    const button = el("button", { class: `cell${share > 0.6 ? " over" : ""}`, tabindex: cells.length ? "-1" : "0", "aria-label": `${name} × ${column}: ${percent(use)} at most, ${percent(one.mean[r][c])} on average, ${one.links[r][c]} links`, title: `${name} × ${column}: ${percent(use)}`, style: { background: `rgba(var(--heat), ${(0.06 + 0.94 * share).toFixed(3)})` }, onclick: () => pick(r, c) }, one.columns.length <= 16 ? `${Math.round(100 * use)}` : "");
    Object.assign(button.dataset, { r, c });
    cells.push(button);
    return el("td", {}, button);
  })));
  const body = el("tbody", {}, rows);
  body.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key], here = event.target.dataset;
    if (!step || here.r === undefined) return;
    event.preventDefault();
    let [r, c] = [Number(here.r) + step[0], Number(here.c) + step[1]], next = null;
    while (r >= 0 && c >= 0 && r < one.rows.length && c < one.columns.length && !(next = body.querySelector(`[data-r="${r}"][data-c="${c}"]`))) { r += step[0]; c += step[1]; }
    if (next) { event.target.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  });
  return el("div", { class: "matrices" }, el("h3", {}, one.title, el("span", { class: "soft small plain" }, "  0", el("span", { class: "scale" }), percent(top))), el("div", { class: "scroll" }, el("table", { class: `cells${one.columns.length > 16 ? " many" : ""}` }, el("thead", {}, el("tr", {}, el("td", {}), one.columns.map((name) => el("th", { scope: "col" }, el("span", {}, name))))), body)));
}
