// The page: opens a spec, and brings its parts together.
import { answerView, list } from "./answer.js";
import { get, upload } from "./api.js";
import { controls } from "./controls.js";
import { el, find, percent, tabs, time } from "./dom.js";
import { formView } from "./form.js";
import { sharing } from "./share.js";
import { edit, onAnswer, open, retype, spec, value } from "./spec.js";

const info = await get("/api/info");
const seen = new Map(); // views that are made when they are first shown
const showView = tabs(document.querySelector("main > nav"), (id) => seen.get(id)?.());

for (const base of ["folder", "examples"]) {
  const some = info.specs.filter((one) => one.base === base);
  if (some.length) find("specs").append(el("optgroup", { label: base === "folder" ? "This folder" : "Examples" }, some.map((one) => el("option", { value: `${base}/${one.name}`, title: one.about }, one.name))));
}

async function choose(base, name) {
  const found = await get(`/api/specs/${base}/${encodeURIComponent(name)}`);
  find("specs").value = `${base}/${name}`;
  await open({ base, name, text: found.text, known: found.text });
}
find("specs").addEventListener("change", () => {
  const [base, ...name] = find("specs").value.split("/");
  choose(base, name.join("/"));
});

let typing = 0;
find("text").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => retype(find("text").value), 250);
});

const showControls = controls(find("pane-sliders")), showForm = formView(find("pane-form"));
let pane = "edit-sliders";
const refresh = () => {
  showControls();
  if (pane === "edit-form") showForm();
  if (document.activeElement !== find("text") && spec.answer) find("text").value = spec.answer.text;
  find("text").setAttribute("aria-invalid", Boolean(spec.answer?.errors.length));
  find("problems").replaceChildren(spec.answer?.errors.length ? list(spec.answer.errors) : "");
};
tabs(document.querySelector("aside .segments"), (id) => { pane = id; refresh(); });
onAnswer(refresh);

// On a narrow screen settings are folded away, and the step stays in sight beside them.
find("settings").addEventListener("click", () => {
  const on = find("side").classList.toggle("open");
  find("settings").setAttribute("aria-expanded", on);
  if (on) find("side").scrollIntoView();
});
onAnswer(() => {
  const s = spec.answer?.summary;
  find("now").textContent = s ? `${time(s.step_time_ps)}${s.mfu === null ? "" : ` · MFU ${percent(s.mfu)}`} · ${s.job.ranks.toLocaleString("en")} GPUs` : spec.answer?.errors.length ? "not a spec yet" : "";
});

answerView(find("view-answer"));
sharing();
for (const [tab, module, make] of [["map", "./map.js", "mapView"], ["timeline", "./timeline.js", "timelineView"], ["compare", "./compare.js", "compareView"], ["doctor", "./doctor.js", "doctorView"], ["catalog", "./catalog.js", "catalogView"]]) {
  seen.set(`tab-${tab}`, async () => {
    const view = await (seen.get(module) ?? seen.set(module, import(module).then((loaded) => loaded[make](find(`view-${tab}`), { info, show: (id) => showView(`tab-${id}`) }))).get(module));
    view?.shown?.();
  });
}

// Files: chosen, or dropped anywhere.
async function take(files) {
  const logs = {};
  for (const file of files) {
    try {
      const kept = await upload(file);
      const text = kept.kind === "spec" ? await file.text() : "";
      if (kept.kind === "spec") await open({ base: "examples", name: file.name, text, files: spec.files });
      else if (kept.kind === "log") logs[file.name] = kept.id;
      else {
        spec.files = { ...spec.files, [file.name]: kept.id };
        await edit(placed(kept.kind, file.name));
      }
      find("name").textContent = `${file.name}: ${{ spec: "opened", ibnetdiscover: "the cluster", "nccl-topology": "the hosts", model: "the model", log: "for the doctor" }[kept.kind]}`;
    } catch (error) { find("name").textContent = `${file.name}: ${error.message}`; }
  }
  if (Object.keys(logs).length) {
    showView("tab-doctor");
    (await import("./doctor.js")).diagnose(logs);
  }
}
/** The edits by which a dropped file takes its place in the spec. */
function placed(kind, name) {
  if (kind === "model") return { "workload.training.model": name };
  if (kind === "nccl-topology") return { "cluster.hosts": { nccl_xml: { file: name }, type: null } };
  const host = value("cluster.hosts.type");
  return { cluster: { ibnetdiscover: name, hosts: null, network: null, ...(host ? { bind: [{ match: "*", host }] } : {}) } };
}
find("open").addEventListener("click", () => find("file").click());
find("file").addEventListener("change", () => { take(find("file").files); find("file").value = ""; });
addEventListener("dragover", (event) => { event.preventDefault(); find("drop").hidden = false; });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) find("drop").hidden = true; });
addEventListener("drop", (event) => { event.preventDefault(); find("drop").hidden = true; take(event.dataTransfer.files); });

if (info.first) await choose(info.first.base, info.first.name);
