// The timeline of a run: every stage over the step, and the slices of one stage, drawn as the report draws them.
import { get } from "./api.js";
import { el, key, note } from "./dom.js";
import { onRuns, runs } from "./answer.js";

export function timelineView(place) {
  let drawn = null, stop = null;
  const shown = async () => {
    if (place.hidden) return;
    const run = runs.shown && !runs.shown.answer.serving ? runs.shown : null;
    if (run === drawn && place.childElementCount) return;
    stop?.();
    stop = null;
    drawn = run;
    if (!run) { place.replaceChildren(el("h2", {}, "Timeline"), note("Run the spec first, under Answer: the closed form has no timeline.")); return; }
    let data;
    try { data = run.timeline ??= await get(`/api/jobs/${run.id}/timeline`); } catch (error) { place.replaceChildren(el("p", { class: "wrong" }, error.message)); return; }
    if (drawn !== run) return;
    const parts = new Map(), named = (id, node) => { parts.set(id, node); return node; };
    place.replaceChildren(
      el("h2", {}, `Timeline: ${run.title}`),
      el("div", { class: "bar" }, el("span", { class: "soft small grow" }, "One row a stage. Wheel, pinch or + and − zoom; drag or the arrow keys move; double-click or 0 shows the whole step."),
        named("zoom-in", el("button", { "aria-label": "zoom in" }, "+")), named("zoom-out", el("button", { "aria-label": "zoom out" }, "−")), named("zoom-reset", el("button", {}, "Whole step")), data.stage.close_up ? named("zoom-close", el("button", {}, "Close-up")) : ""),
      el("div", { class: "plot" }, named("overview", el("canvas", { id: "overview", tabindex: "0", role: "img", "aria-label": "what every stage does over the step" }))),
      el("div", { class: "legend" }, Object.entries(data.names).map(([name, said]) => el("span", {}, key(name.replace("exposed_", "")), said))),
      el("h3", {}, data.stage.name),
      el("div", { class: "plot" }, named("stage", el("canvas", { id: "stage", tabindex: "0", role: "img", "aria-label": `what ${data.stage.name} does over the step` }))),
    );
    parts.set("tip", document.getElementById("tip"));
    stop = window.timelines(data, (id) => parts.get(id) ?? null);
  };
  onRuns(shown);
  return { shown };
}
