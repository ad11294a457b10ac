// The spec as a form, built from its JSON schema: what is there as fields, what may be there to be added.
import { get } from "./api.js";
import { el } from "./dom.js";
import { edit, problems, spec } from "./spec.js";

let schema = null;
const opened = new Set(["cluster", "workload", "workload.training", "workload.serving", "run"]);

export function formView(place) {
  return async () => {
    try { schema ??= await get("/api/schema"); } catch (error) { place.replaceChildren(el("p", { class: "wrong" }, error.message)); return; }
    if (!spec.answer?.data) { place.replaceChildren(el("p", { class: "soft" }, "The text is not a spec yet.")); return; }
    const focused = document.activeElement?.dataset?.path, held = place.contains(document.activeElement) && document.activeElement.tagName === "INPUT" ? document.activeElement.value : null;
    place.replaceChildren(...fields(schema, spec.answer.data, ""));
    if (focused) {
      const again = place.querySelector(`[data-path="${CSS.escape(focused)}"]`);
      again?.focus();
      if (held !== null && again?.tagName === "INPUT" && again.type === "text") again.value = held;
    }
  };
}

const named = (node) => (node?.$ref ? named(schema.$defs[node.$ref.split("/").pop()]) : node);
const variants = (node) => {
  const found = named(node) ?? {};
  const several = found.anyOf ?? found.oneOf;
  return several ? several.flatMap(variants) : [found];
};

/** The variant of a schema that fits data best. */
function fitting(node, data) {
  const all = variants(node).filter((one) => one.type !== "null");
  if (data !== null && typeof data === "object" && !Array.isArray(data)) {
    const score = (one) => Object.keys(data).filter((name) => one.properties && name in one.properties).length - (one.required ?? []).filter((name) => !(name in data)).length / 100;
    return all.filter((one) => one.type === "object" || one.properties).sort((a, b) => score(b) - score(a))[0] ?? {};
  }
  if (Array.isArray(data)) return all.find((one) => one.type === "array") ?? {};
  return all.find((one) => one.enum || one.const !== undefined) ?? all.find((one) => one.type === "boolean") ?? all[0] ?? {};
}

const join = (path, name) => (typeof name === "number" ? `${path}[${name}]` : path ? `${path}.${name}` : name);

function fields(node, data, path) {
  const chosen = fitting(node, data), properties = chosen.properties ?? {};
  const names = [...Object.keys(properties).filter((name) => name in data), ...Object.keys(data).filter((name) => !(name in properties))];
  const rows = names.map((name) => field(properties[name] ?? chosen.additionalProperties ?? {}, data[name], join(path, name), name, (chosen.required ?? []).includes(name)));
  const free = Object.keys(properties).filter((name) => !(name in data));
  return free.length ? [...rows, adder(properties, free, path)] : rows;
}

function adder(properties, free, path) {
  const choose = el("select", { "aria-label": `add a key to ${path || "the spec"}`, "data-path": `${path}+`, onchange: () => {
    const name = choose.value, its = fitting(properties[name], undefined), shown = properties[name].default ?? its.default;
    const plain = { object: {}, array: [], boolean: false, integer: its.minimum ?? 1, number: its.minimum ?? 1 }[its.type];
    const first = shown !== undefined && shown !== null ? shown : its.enum?.[0] ?? plain ?? (its.properties ? {} : "");
    opened.add(join(path, name));
    edit({ [join(path, name)]: first });
  } }, el("option", { value: "" }, "Add a key…"), free.map((name) => el("option", { value: name, title: properties[name].description ?? "" }, name)));
  return el("div", { class: "field add" }, choose);
}

function field(node, data, path, name, required) {
  const wrong = problems(path), id = `field-${path}`;
  const why = wrong.length ? el("p", { class: "wrong", id: `${id}-why` }, wrong.map((one) => one.message).join("; ")) : "";
  const drop = required ? "" : el("button", { class: "drop", "aria-label": `remove ${path}`, title: "remove", onclick: () => edit({ [path]: null }) }, "✕");
  if (data !== null && typeof data === "object" && !(Array.isArray(data) && data.every((one) => one === null || typeof one !== "object"))) {
    const inner = el("details", { open: opened.has(path) || problems(path, true).length > 0, ontoggle: () => (inner.open ? opened.add(path) : opened.delete(path)) },
      el("summary", {}, name, Array.isArray(data) ? ` (${data.length})` : ""), why,
      Array.isArray(data) ? data.map((one, at) => field(fitting(node, data).items ?? {}, one, join(path, at), `${name} ${at + 1}`, true)) : fields(node, data, path));
    return el("div", { class: "group" }, inner, drop);
  }
  const its = { id, "data-path": path, "aria-invalid": wrong.length > 0, "aria-describedby": wrong.length ? `${id}-why` : undefined };
  return el("div", { class: "field" }, el("label", { for: id, title: named(node)?.description ?? "" }, name), input(node, data, path, its), drop, why);
}

function input(node, data, path, its) {
  const chosen = fitting(node, data), options = chosen.enum ?? (chosen.const !== undefined ? [chosen.const] : null);
  const also = variants(node).length > 1 && variants(node).some((one) => one.type === "string" && !one.enum);
  if (options && !also) {
    const known = options.includes(data) ? options : [data, ...options];
    const choice = el("select", { ...its, onchange: () => edit({ [path]: known[choice.selectedIndex] }) }, known.map((one) => el("option", { selected: one === data }, String(one))));
    return choice;
  }
  if (chosen.type === "boolean" && typeof data === "boolean") {
    const box = el("input", { ...its, type: "checkbox", checked: data, onchange: () => edit({ [path]: box.checked }) });
    return box;
  }
  const shown = Array.isArray(data) ? data.join(", ") : data === null ? "" : String(data);
  const numeric = variants(node).some((one) => one.type === "integer" || one.type === "number");
  const read = (text) => {
    const one = (word) => (numeric || (Array.isArray(data) && data.every((its) => typeof its === "number")) ? (/^[-+]?\d+(\.\d+)?(e[-+]?\d+)?$/i.test(word) ? Number(word) : word) : word);
    return Array.isArray(data) ? text.split(",").map((word) => one(word.trim())).filter((word) => word !== "") : one(text.trim());
  };
  const box = el("input", { ...its, type: "text", value: shown, spellcheck: "false", autocomplete: "off", onchange: () => edit({ [path]: read(box.value) }) });
  return box;
}
