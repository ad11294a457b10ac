// The doctor: logs in, findings out.
import { follow, get, upload } from "./api.js";
import { el, find, note } from "./dom.js";

let files = {};
export function doctorView(place) {
  const choose = el("input", { type: "file", multiple: true, id: "logs", "aria-label": "logs, dumps, counters", onchange: async () => {
    files = {};
    for (const file of choose.files) files[file.name] = (await upload(file)).id;
    diagnose(files);
  } });
  const twin = el("input", { type: "checkbox", id: "with-twin", checked: true });
  place.replaceChildren(el("h2", {}, "What a cluster printed"), note("NCCL's log (NCCL_DEBUG=INFO), counters, dumps: drop them anywhere on this page, or choose them. Nothing leaves this machine."),
    el("div", { class: "bar" }, choose, el("label", { class: "small" }, twin, " hold it against the twin")), el("p", { id: "doctor-state", class: "soft small", role: "status" }), el("div", { id: "findings" }));
  return {};
}

export async function diagnose(given) {
  for (let tries = 0; !find("findings") && tries < 100; tries += 1) await new Promise((resolve) => setTimeout(resolve, 20));
  const state = find("doctor-state"), out = find("findings");
  out.replaceChildren();
  try {
    const last = await follow({ kind: "doctor", files: given, twin: find("with-twin").checked }, (now) => { state.textContent = now.stage; });
    if (last.state !== "done") { state.textContent = last.error?.message ?? "Cancelled."; return; }
    state.textContent = "";
    const answer = await get(`/api/jobs/${last.id}/answer`);
    out.replaceChildren(...drawn(answer), el("p", { class: "small" }, el("a", { href: `/api/jobs/${last.id}/files/doctor.html`, target: "_blank", rel: "noopener" }, "The whole page")));
  } catch (error) { state.textContent = error.message; }
}

function drawn(answer) {
  const h = answer.hardware;
  const lines = [el("p", {}, el("strong", {}, { faults: "Something is wrong.", clean: "Nothing is wrong, as far as these files show.", "not enough evidence": "Not enough evidence." }[answer.verdict] ?? answer.verdict), h ? ` ${h.hosts} × ${h.host}, ${h.fabric}${h.nccl ? `, NCCL ${h.nccl}` : ""}.` : "")];
  lines.push(...answer.findings.map(finding));
  if (answer.collect.length) lines.push(el("h3", {}, "What would tell more"), el("ul", {}, answer.collect.map((one) => el("li", {}, one))));
  if (answer.not_read.length) lines.push(el("h3", {}, "Not read"), el("ul", { class: "soft small" }, answer.not_read.map((one) => el("li", {}, `${one.file}: ${one.reason}`))));
  if (answer.notes.length) lines.push(el("ul", { class: "soft small" }, answer.notes.map((one) => el("li", {}, one))));
  return lines;
}

function finding(one) {
  const said = (name, value) => (value ? el("p", {}, el("span", { class: "soft" }, `${name}: `), String(value)) : "");
  const evidence = one.evidence.map((line) => el("li", {}, el("code", {}, `${line.file}${line.line ? `:${line.line}` : ""}`), " ", line.text));
  return el("article", { class: "finding" }, el("h3", {}, el("span", { class: `badge ${one.severity}` }, one.severity), " ", one.cause, one.object ? el("span", { class: "soft plain" }, ` · ${one.object}`) : ""),
    said("Seen", one.seen), said("Expected", one.expected && one.expected_from ? `${one.expected} (${one.expected_from})` : one.expected), said("Fix", one.fix), said("Gain", one.predicted_gain),
    evidence.length ? el("details", {}, el("summary", { class: "small" }, `Evidence, ${evidence.length} line${evidence.length > 1 ? "s" : ""}`), el("ul", { class: "small evidence" }, evidence)) : "",
    one.consequences.length ? el("details", {}, el("summary", { class: "small" }, `What follows from it, ${one.consequences.length}`), one.consequences.map(finding)) : "");
}
