// Sliders over what matters, each on a key of the spec.
import { el, find } from "./dom.js";
import { edit, problems, spec, value } from "./spec.js";

const powers = (low, high) => { const found = []; for (let n = low; n <= high; n *= 2) found.push(n); return found; };
const PARALLEL = "workload.training.parallel.";
const AS_BUILT = "as built";

// Each control: what it is called, the values of its slider, how it reads the spec and which edits a value makes.
const CONTROLS = [
  { id: "hosts", name: "Hosts", key: "cluster.hosts.count", values: () => powers(1, 4096) },
  {
    id: "rails", name: "Rails that NCCL uses", key: "nccl.NCCL_IB_HCA", values: () => { const all = adapters().length; return [...powers(1, all - 1), null]; },
    when: () => adapters().length > 1,
    read: () => { const said = value("nccl.NCCL_IB_HCA"); return typeof said === "string" ? said.split(",").length : null; },
    edits: (count) => ({ "nccl.NCCL_IB_HCA": count === null ? null : `=${adapters().slice(0, count).join(",")}` }),
    said: (count) => (count === null ? `all ${adapters().length}` : String(count)),
  },
  {
    id: "oversubscription", name: "Oversubscription", key: "cluster.network.topology.oversubscription", values: () => [1, 1.5, 2, 3, 4, 6, 8],
    when: () => value("cluster.network.topology.kind") !== "single-switch", missing: 1, said: (ratio) => `${ratio} : 1`,
    read: () => { const said = value("cluster.network.topology.oversubscription"); return typeof said === "string" && said.includes(":") ? said.split(":").reduce((a, b) => a / b) : said; },
  },
  {
    id: "rate", name: "Link rate", key: "cluster.network.link_rate", values: () => ["25 Gb/s", "50 Gb/s", "100 Gb/s", "200 Gb/s", "400 Gb/s", "800 Gb/s", null],
    said: (rate) => rate ?? AS_BUILT, read: () => { const said = value("cluster.network.link_rate"); return typeof said === "string" ? said.replace(/^(\d+)\s*G(?:bps|b\/s)$/i, "$1 Gb/s") : said; },
  },
  { id: "tp", name: "Tensor parallel (TP)", key: `${PARALLEL}tp`, values: () => powers(1, 64), missing: 1 },
  { id: "pp", name: "Pipeline parallel (PP)", key: `${PARALLEL}pp`, values: () => powers(1, 128), missing: 1 },
  { id: "dp", name: "Data parallel (DP)", key: `${PARALLEL}dp`, values: () => [...powers(1, 4096), null], said: (ranks) => ranks ?? dataParallel() },
  { id: "ep", name: "Expert parallel (EP)", key: `${PARALLEL}ep`, values: () => powers(1, 256), missing: 1 },
  { id: "cp", name: "Context parallel (CP)", key: `${PARALLEL}cp`, values: () => powers(1, 64), missing: 1 },
  { id: "micro", name: "Micro-batch", key: "workload.training.micro_batch_size", values: () => powers(1, 32), missing: 1 },
  { id: "batch", name: "Global batch", key: "workload.training.global_batch", values: () => powers(8, 16384), when: () => value("workload.training.global_batch") !== undefined },
  {
    id: "jitter", name: "Jitter: interruptions every 10 ms", key: "faults", values: () => [null, 5, 10, 25, 50, 100, 250, 500, 1000],
    said: (us) => (us === null ? "none" : `${us} µs each`),
    read: () => { const noise = (value("faults") ?? []).find((fault) => fault.noise)?.noise; const found = /^(\d+(?:\.\d+)?)\s*(us|ms)$/.exec(noise?.mean ?? ""); return found ? Number(found[1]) * (found[2] === "ms" ? 1000 : 1) : null; },
    edits: (us) => { const others = (value("faults") ?? []).filter((fault) => !fault.noise); const all = us === null ? others : [...others, { noise: { mean: `${us} us`, period: "10 ms" } }]; return { faults: all.length ? all : null }; },
  },
];

const adapters = () => spec.answer?.adapters ?? [];
function dataParallel() {
  const ranks = spec.answer?.summary?.job?.ranks;
  if (!ranks) return "what is left";
  const sizes = ["tp", "pp", "cp"].map((size) => value(PARALLEL + size) ?? 1);
  return `${ranks / sizes.reduce((a, b) => a * b, 1)}, what is left`;
}
const order = (one, none) => (one === null ? none : parseFloat(one));

function applies(control) {
  if (control.when && !control.when()) return false;
  if (control.key.startsWith("workload.training")) return value("workload.training") !== undefined;
  if (control.key.startsWith("cluster.network")) return value("cluster.network") !== undefined;
  if (control.key === "cluster.hosts.count") return value("cluster.hosts.count") !== undefined;
  if (control.id === "rails") return value("workload.training") !== undefined;
  return true;
}

/** Make the controls once; the answer shows what the spec has. */
export function controls(place) {
  const shown = CONTROLS.map((control) => ({ control, ...row(control) }));
  place.replaceChildren(el("p", { class: "soft small", id: "no-sliders", hidden: true }, "This spec has none of the keys that sliders move."), ...shown.map((one) => one.node));
  return () => {
    let any = false;
    for (const one of shown) {
      const on = Boolean(spec.answer?.data) && applies(one.control);
      one.node.hidden = !on;
      any ||= on;
      if (on) one.show();
    }
    find("no-sliders").hidden = any;
  };
}

function row(control) {
  const output = el("output", { for: `slide-${control.id}` });
  const slide = el("input", { type: "range", id: `slide-${control.id}`, min: "0", step: "1", "aria-describedby": `why-${control.id}` });
  const why = el("p", { class: "wrong", id: `why-${control.id}` });
  const said = control.said ?? ((one) => String(one));
  const none = control.id === "jitter" ? -1 : Infinity; // where a key that is not there stands
  let values = [];
  const name = (at) => { output.textContent = said(values[at]); slide.setAttribute("aria-valuetext", output.textContent); };
  slide.addEventListener("input", () => {
    const at = Number(slide.value), chosen = values[at];
    name(at);
    edit(control.edits ? control.edits(chosen) : { [control.key]: chosen });
  });
  const show = () => {
    const now = (control.read ? control.read() : value(control.key)) ?? control.missing ?? null;
    values = [...control.values()];
    if (!values.some((one) => one === now) && (now === null || !Number.isNaN(parseFloat(now)))) values.push(now);
    values.sort((a, b) => order(a, none) - order(b, none));
    slide.max = values.length - 1;
    const at = values.indexOf(now);
    if (document.activeElement !== slide || Number(slide.value) !== at) slide.value = at;
    name(Number(slide.value));
    const wrong = problems(control.key);
    why.textContent = wrong.map((one) => one.message).join("; ");
    slide.setAttribute("aria-invalid", wrong.length > 0);
  };
  return { show, node: el("div", { class: "control" }, el("label", { for: `slide-${control.id}` }, control.name), output, slide, why) };
}
