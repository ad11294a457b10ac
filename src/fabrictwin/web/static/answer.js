// The answer: in closed form at once, and simulated on demand, with progress and cancel.
import { follow, get, post, remove } from "./api.js";
import { bytes, el, find, key, meter, note, number, percent, signed, table, tile, tiles, time } from "./dom.js";
import { onAnswer, source, spec } from "./spec.js";

export const runs = { all: [], shown: null }; // runs that are done, with their answers; the one that is shown
const watchers = new Set();
export const onRuns = (watch) => watchers.add(watch);
const tell = () => watchers.forEach((watch) => watch());

let under = null; // the job that is under way

export function answerView(place) {
  const quick = el("div", { id: "closed-form", "aria-live": "polite" });
  const jobs = el("div", { id: "simulate" });
  const detail = el("div", { id: "detail" });
  place.replaceChildren(quick, jobs, detail);
  onAnswer(() => { show(quick, detail); simulate(jobs); });
  onRuns(() => { show(quick, detail); simulate(jobs); });
}

function show(quick, detail) {
  const { answer, error } = spec;
  if (error) { quick.replaceChildren(el("p", { class: "wrong", role: "alert" }, error.message)); return; }
  if (!answer) return;
  const head = el("header", {}, el("h2", {}, answer.summary?.name ?? answer.data?.name ?? spec.name));
  if (answer.errors.length) {
    quick.replaceChildren(head, el("p", { class: "wrong" }, `${answer.errors.length} thing${answer.errors.length > 1 ? "s" : ""} to mend before there is an answer:`), list(answer.errors));
    detail.replaceChildren();
    return;
  }
  if (answer.serving) {
    quick.replaceChildren(head, note("A server has no closed form: run it."));
    detail.replaceChildren(runs.shown?.answer.serving ? served(runs.shown) : "");
    return;
  }
  if (!answer.summary) { quick.replaceChildren(head, note("This spec has no job to answer for; the map shows its cluster.")); detail.replaceChildren(); return; }
  const s = answer.summary;
  quick.replaceChildren(head, el("p", { class: "what" }, s.cluster.description), el("p", { class: "what" }, s.job.description), figures(s, "Step, in closed form"), el("p", { class: "soft small", id: "took" }, `Answered in ${Math.round(spec.tookMs)} ms.`));
  const run = runs.shown && !runs.shown.answer.serving ? runs.shown : null;
  detail.replaceChildren(...(run ? simulated(run, s) : []), parts(run ? run.answer : s, run ? `Where the step goes, ${run.title}` : "Where the step goes"), memory(run ? run.answer : s), ...(run ? [exposed(run.answer), gains(run.answer), links(run.answer)] : []), notes(run ? run.answer : s));
}

export const list = (errors) => el("ul", { class: "problems" }, errors.map((one) => el("li", {}, one.key && el("code", {}, one.key), one.key && ": ", one.message, one.line && el("span", { class: "soft" }, ` (line ${one.line})`))));

function figures(s, name) {
  const [value, unit] = time(s.step_time_ps).split(" ");
  const found = [tile(name, value, unit)];
  if (s.mfu !== null) {
    found.push(tile("Throughput", number(s.tokens_per_s_per_gpu), "tokens/s/GPU"), tile("MFU", (100 * s.mfu).toFixed(1), "%", `of ${number(s.peak_tflops_per_gpu)} TFLOP/s, ${s.precision}`));
  }
  if (s.memory) found.push(tile("Memory", bytes(s.memory.total_bytes).split(" ")[0], bytes(s.memory.total_bytes).split(" ")[1], s.memory.fits ? `of ${bytes(s.memory.capacity_bytes)}` : `too much by ${bytes(s.memory.over_bytes)}`));
  return tiles(...found);
}

function simulated(run, s) {
  const off = run.answer.step_time_ps / s.step_time_ps - 1;
  return [el("h2", {}, `Simulated: ${run.title}`), figures(run.answer, `Step at ${run.answer.fidelity}`), el("p", {}, run.answer.limits, run.asked === JSON.stringify(source()) ? ` ${signed(off)} against the closed form.` : ""), run.asked === JSON.stringify(source()) ? "" : el("p", { class: "stale" }, "The spec has changed since this run."),
    el("p", { class: "small" }, file(run.id, "report.html", "Report"), " · ", file(run.id, "timeline.pftrace", "Perfetto timeline"), " · ", file(run.id, "config.resolved.yaml", "Resolved spec"), " · ", tables(run.id))];
}
const file = (id, name, said) => el("a", { href: `/api/jobs/${id}/files/${name}`, target: "_blank", rel: "noopener" }, said);
const tables = (id) => el("span", {}, ["links", "flows", "breakdown"].flatMap((name, at) => [at ? ", " : "Tables: ", el("a", { href: `/api/jobs/${id}/tables/${name}?format=csv` }, `${name}.csv`), " ", el("a", { href: `/api/jobs/${id}/tables/${name}?format=parquet` }, "parquet")]));

function parts(s, title) {
  const category = (one) => one.key.replace("exposed_", "");
  const bar = el("div", { class: "stack", role: "img", "aria-label": s.breakdown.map((one) => `${one.name} ${one.percent.toFixed(1)}%`).join(", ") },
    s.breakdown.map((one) => el("i", { colour: category(one), style: { width: `${one.percent}%` }, title: `${one.name} ${one.percent.toFixed(1)}%` })));
  return el("section", {}, el("h2", {}, title), bar, table(["Part", ["Share", true], ["Time", true]], s.breakdown.map((one) => [el("span", {}, key(category(one)), one.name), [`${one.percent.toFixed(1)}%`, true], [time(one.time_ps), true]])));
}

function memory(s) {
  if (!s.memory) return "";
  const m = s.memory;
  return el("section", {}, el("h2", {}, "Memory of a GPU"), note(`${bytes(m.total_bytes)} of ${bytes(m.capacity_bytes)} on a rank of stage ${m.stage}, the fullest.${m.fits ? "" : ` It does not fit: ${bytes(m.over_bytes)} too much.`}`),
    table(["What", ["Takes", true]], m.items.map((item) => [item.name + (item.estimate ? " (estimate)" : ""), [el("span", {}, meter(item.bytes / m.capacity_bytes), el("span", { class: "figure" }, bytes(item.bytes))), true]])));
}

function exposed(s) {
  const found = s.exposed_communication.filter((one) => one.under_way_ps).sort((a, b) => b.time_ps - a.time_ps);
  if (!found.length) return "";
  return el("section", {}, el("h2", {}, "Exposed communication"), table(["Communication", ["Share", true], ["Exposed", true], ["Hidden", true]], found.map((one) => [el("span", {}, key(one.category), one.name), [percent(one.time_ps / s.step_time_ps), true], [time(one.time_ps), true], [time(one.hidden_ps), true]])));
}

function gains(s) {
  if (!s.what_if?.length) return "";
  const most = Math.max(...s.what_if.map((one) => Math.abs(one.gained_percent))) || 1;
  return el("section", {}, el("h2", {}, "What would gain most"), note("Each change alone, in closed form; gains do not add up."), table(["Change", ["Gained", true], ["Step then", true]], s.what_if.map((one) => [one.name, [el("span", {}, meter(one.gained_percent / most), el("span", { class: "figure" }, `${one.gained_percent.toFixed(1)}%`)), true], [time(one.step_time_ps), true]])));
}

function links(s) {
  if (!s.busiest_links.length) return "";
  return el("section", {}, el("h2", {}, "Busiest links"), table(["Link", ["Used", true], ["Carried", true]], s.busiest_links.map((one) => [el("span", { class: "name" }, one.link), [el("span", {}, meter(one.utilisation), el("span", { class: "figure" }, percent(one.utilisation))), true], [bytes(one.tx_bytes), true]])));
}

const notes = (s) => (s.notes?.length ? el("section", {}, el("h2", {}, "Notes"), el("ul", { class: "soft small" }, s.notes.map((one) => el("li", {}, one)))) : "");

function served(run) {
  const fields = Object.entries(run.answer.serving).filter(([, value]) => typeof value === "number");
  return el("section", {}, el("h2", {}, `Served: ${run.title}`), el("pre", {}, run.answer.headline.join("\n")), table(["Figure", ["Value", true]], fields.map(([name, value]) => [el("span", { class: "name" }, name), [number(value), true]])));
}

function simulate(place) {
  const fits = spec.answer && !spec.answer.errors.length && (spec.answer.summary || spec.answer.serving);
  const start = (fidelity) => () => run(fidelity, place);
  const buttons = spec.answer?.serving ? [["flow", "Run the server"]] : [["flow", "Run flow"], ["packet", "Run packet by packet"]];
  const bar = el("div", { class: "bar" }, buttons.map(([fidelity, said]) => el("button", { id: `run-${fidelity}`, onclick: start(fidelity), disabled: !fits || Boolean(under) }, said)));
  if (under) bar.append(...progress());
  const done = runs.all.length ? el("div", { class: "bar small", role: "group", "aria-label": "Runs" }, el("span", { class: "soft" }, "Runs:"), runs.all.map((one) => el("button", { "aria-pressed": one === runs.shown, onclick: () => { runs.shown = one === runs.shown ? null : one; tell(); } }, `${one.title} · ${one.said}`)), el("button", { onclick: () => { for (const one of runs.all) remove(`/api/jobs/${one.id}`).catch(() => {}); Object.assign(runs, { all: [], shown: null }); tell(); } }, "Forget all")) : "";
  const keep = place.contains(document.activeElement) ? document.activeElement.id : "";
  place.replaceChildren(bar, failed ? el("p", { class: "wrong", role: "alert" }, failed) : "", done);
  if (keep) find(keep)?.focus();
}

let failed = "";
function progress() {
  const { stage, fraction, elapsed_s: elapsed, left_s: left, id } = under;
  const said = `${stage}${fraction === null ? "" : `, ${Math.round(100 * fraction)}%`}${elapsed ? `, ${Math.round(elapsed)} s` : ""}${left ? `, about ${Math.max(1, Math.round(left))} s left` : ""}`;
  const bar = el("progress", { max: "1", "aria-label": "progress" });
  if (fraction !== null) bar.value = fraction;
  return [bar, el("span", { class: "soft small grow", id: "stage" }, said), el("button", { id: "cancel", onclick: () => post(`/api/jobs/${id}/cancel`) }, "Cancel")];
}

async function run(fidelity, place) {
  const asked = JSON.stringify(source());
  failed = "";
  try {
    const last = await follow({ kind: "run", spec: source(), fidelity }, (state) => { under = state; simulate(place); });
    under = null;
    if (last.state === "done") {
      const answer = await get(`/api/jobs/${last.id}/answer`);
      const one = { id: last.id, title: last.title, said: answer.serving ? "server" : time(answer.step_time_ps), answer, asked };
      runs.all.push(one);
      runs.shown = one;
    } else failed = last.state === "cancelled" ? "Cancelled." : `${last.error.key ? `${last.error.key}: ` : ""}${last.error.message}`;
  } catch (error) { failed = error.message; }
  under = null;
  tell();
}
