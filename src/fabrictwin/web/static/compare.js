// Side by side: fabrics, layouts, two runs.
import { follow, get } from "./api.js";
import { bytes, el, find, meter, note, number, percent, table, time } from "./dom.js";
import { onRuns, runs } from "./answer.js";
import { edit, source } from "./spec.js";

/** A button that begins a job, its progress, and what its answer looks like. */
function asking(id, said, request, drawn) {
  const out = el("div", { id: `${id}-answer`, "aria-live": "polite" }), status = el("span", { class: "soft small grow", role: "status" });
  let under = null;
  const cancel = el("button", { hidden: true, onclick: () => fetch(`/api/jobs/${under}/cancel`, { method: "POST" }) }, "Cancel");
  const button = el("button", { id, onclick: async () => {
    button.disabled = true;
    cancel.hidden = false;
    try {
      const last = await follow(request(), (state) => { under = state.id; status.textContent = `${state.stage}${state.fraction === null ? "" : `, ${Math.round(100 * state.fraction)}%`}`; });
      status.textContent = "";
      if (last.state === "done") out.replaceChildren(...[drawn(await get(`/api/jobs/${last.id}/answer`), last)].flat());
      else status.textContent = last.error?.message ?? "Cancelled.";
    } catch (error) { status.textContent = error.message; }
    button.disabled = false;
    cancel.hidden = true;
  } }, said);
  return [el("div", { class: "bar" }, button, status, cancel), out];
}
const page = (job, name, said) => el("p", { class: "small" }, el("a", { href: `/api/jobs/${job.id}/files/${name}`, target: "_blank", rel: "noopener" }, said));

export function compareView(place, { info }) {
  const boxes = info.fabrics.map((name, at) => el("input", { type: "checkbox", value: name, checked: at < 2 }));
  const packets = el("input", { type: "checkbox" });
  const fabrics = asking("compare-fabrics", "Compare these fabrics", () => ({ kind: "compare", spec: source(), fabrics: boxes.filter((box) => box.checked).map((box) => box.value), seeds: packets.checked ? [1] : [] }), fabricTable);
  const layouts = asking("plan-layouts", "Search the fastest layouts", () => ({ kind: "plan", spec: source(), top: 8 }), layoutTable);
  const before = el("select", { id: "diff-before", "aria-label": "first run" }), after = el("select", { id: "diff-after", "aria-label": "second run" });
  const difference = asking("diff-runs", "Hold against each other", () => ({ kind: "diff", before: before.value, after: after.value }), differenceTable);
  const missing = note("Run the spec twice, as it is and changed, to hold the runs against each other.");
  const two = el("div", {}, el("div", { class: "bar" }, el("label", {}, "A ", before), el("label", {}, "B ", after)), ...difference);
  place.replaceChildren(
    el("h2", {}, "Fabrics"), note("The same hosts and job on each, with jitter."), el("div", { class: "bar checks", role: "group", "aria-label": "fabrics" }, boxes.map((box) => el("label", {}, box, " ", box.value))), el("label", { class: "small" }, packets, " measure what control and loss cost packet by packet (takes minutes)"), ...fabrics,
    el("h2", {}, "Layouts"), note("Parallel sizes, micro-batches and recomputation that fit in memory."), ...layouts,
    el("h2", {}, "Two runs"), missing, two,
  );
  const list = () => {
    const steps = runs.all.filter((one) => !one.answer.serving);
    two.hidden = steps.length < 2;
    missing.hidden = !two.hidden;
    const kept = [before.value, after.value];
    for (const choose of [before, after]) choose.replaceChildren(...steps.map((one) => el("option", { value: one.id }, `${one.title} · ${one.said} (${one.id})`)));
    const known = (id, otherwise) => (steps.some((one) => one.id === id) ? id : otherwise);
    if (steps.length > 1) [before.value, after.value] = [known(kept[0], steps.at(-2).id), known(kept[1], steps.at(-1).id)];
  };
  onRuns(list);
  list();
  return {};
}

const figure = (value, said) => [value === null || value === undefined ? "–" : said(value), true];
function fabricTable(answer, job) {
  const seconds = (s) => time(s * 1e12);
  const best = Math.min(...answer.fabrics.map((one) => one.step_s?.p50 ?? Infinity));
  const rows = answer.fabrics.map((one) => [el("span", { title: one.title }, one.fabric, one.step_s?.p50 === best ? " ★" : ""), figure(one.clean_step_s, seconds), figure(one.step_s?.p50, seconds), figure(one.step_s?.p99, seconds), figure(one.mfu, (v) => percent(v)), [el("span", {}, meter(one.busiest_link?.utilisation ?? 0), el("span", { class: "figure" }, percent(one.busiest_link?.utilisation ?? 0))), true], figure(one.cost?.per_million_tokens, (v) => number(v, 3))]);
  return [el("p", {}, el("strong", {}, answer.verdict.answer)), ...(answer.verdict.because ?? []).map((line) => el("p", {}, line)), table(["Fabric", ["Step", true], ["Median", true], ["p99", true], ["MFU", true], ["Busiest link", true], ["A million tokens", true]], rows, { label: "fabrics" }), page(job, "compare.html", "The whole page")];
}

function layoutTable(answer) {
  return [note(`${number(answer.layouts_considered)} layouts considered, ${number(answer.layouts_too_large)} do not fit.`),
    table(["Layout", ["Micro-batch", true], "Recompute", ["Memory", true], ["Step", true], ["MFU", true], "Why", ""], answer.layouts.map((one) => [one.layout, [one.micro_batch_size, true], String(one.recompute), [bytes(one.memory_bytes), true], [time(one.step_time_ps), true], [percent(one.mfu), true], el("span", { class: "soft small" }, one.why), el("button", { onclick: () => edit({ "workload.training.parallel": one.parallel, "workload.training.micro_batch_size": one.micro_batch_size, "workload.training.sequence_parallel": one.sequence_parallel, "workload.training.recompute": one.recompute }) }, "Take")]), { label: "layouts" })];
}

function differenceTable(answer, job) {
  const seconds = (value) => (value === null ? "–" : time(value * 1e12)), plain = (value) => (value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  const change = (value) => [value === null ? "–" : `${value > 0 ? "+" : ""}${(100 * value).toFixed(2)}%`, true];
  const bar = (one, most) => el("span", {}, meter(Math.abs((one.after ?? 0) - (one.before ?? 0)) / most));
  const most = Math.max(...answer.parts_s.map((one) => Math.abs((one.after ?? 0) - (one.before ?? 0)))) || 1;
  return [el("p", {}, el("strong", {}, answer.verdict)),
    answer.asked.length ? table(["Asked", "A", "B"], answer.asked.map((one) => [el("span", { class: "name" }, one.key), plain(one.before), plain(one.after)]), { label: "what was asked" }) : "",
    table(["Answer", ["A", true], ["B", true], ["Change", true]], answer.answer.map((one) => [el("span", { class: "name" }, one.name), [one.name.endsWith("_time_s") ? seconds(one.before) : number(one.before ?? 0), true], [one.name.endsWith("_time_s") ? seconds(one.after) : number(one.after ?? 0), true], change(one.change)]), { label: "the answer" }),
    table(["Part of the step", ["A", true], ["B", true], ["Change", true]], answer.parts_s.map((one) => [one.name, [seconds(one.before), true], [seconds(one.after), true], [el("span", {}, bar(one, most), el("span", { class: "figure" }, seconds((one.after ?? 0) - (one.before ?? 0)))), true]]), { label: "parts of the step" }),
    answer.links.length ? table([`Links, ${number(answer.links.length)} differ`, ["A", true], ["B", true]], answer.links.slice(0, 20).map((one) => [el("span", { class: "name" }, one.link), [percent(one.utilisation[0]), true], [percent(one.utilisation[1]), true]]), { label: "links" }) : "",
    page(job, "diff.html", "The whole page")];
}
