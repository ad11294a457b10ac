// The spec that is edited: its text as it was opened, edits over it, files beside it, and the server's answer to it.
import { post } from "./api.js";

export const spec = { base: "examples", name: "", text: "", edits: {}, files: {}, answer: null, error: null, tookMs: 0 };
const watchers = new Set();
export const onAnswer = (watch) => watchers.add(watch);

export const source = () => ({ text: spec.text, edits: spec.edits, base: spec.base, files: spec.files });

let asking = false, again = false;
/** Ask for the closed form of the spec as it is now; while one answer is under way, only the last change is asked. */
export async function update() {
  if (asking) { again = true; return; }
  asking = true;
  do {
    again = false;
    const begun = performance.now();
    try { [spec.answer, spec.error] = [await post("/api/answer", source()), null]; } catch (error) { spec.error = error; }
    spec.tookMs = performance.now() - begun;
    for (const watch of watchers) watch();
  } while (again);
  asking = false;
}

export function open(given) {
  Object.assign(spec, { base: "examples", name: "", text: "", edits: {}, files: {}, answer: null }, given);
  return update();
}
export function edit(changes) {
  Object.assign(spec.edits, changes);
  return update();
}
export function retype(text) {
  Object.assign(spec, { text, edits: {} });
  return update();
}

/** The value at a key; a list of one stands for what is in it. */
export function at(data, path) {
  let here = data;
  for (const part of parts(path)) {
    if (Array.isArray(here) && typeof part === "string") { if (here.length !== 1) return undefined; here = here[0]; }
    if (here === null || typeof here !== "object" || !(part in here)) return undefined;
    here = here[part];
  }
  return here;
}
export const parts = (path) => [...path.matchAll(/([^.[\]]+)|\[(\d+)\]/g)].map((found) => found[1] ?? Number(found[2]));
export const value = (path) => at(spec.answer?.data, path);

/** Problems whose key is this one, or within it; keys are the same with and without the number of an only group. */
const plain = (path) => path.replaceAll(/\[0\]/g, "");
export function problems(path, within = false) {
  const wanted = plain(path);
  return (spec.answer?.errors ?? []).filter((one) => one.key && (plain(one.key) === wanted || (within && plain(one.key).startsWith(`${wanted}.`))));
}
