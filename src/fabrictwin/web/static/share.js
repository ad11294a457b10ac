// What is on the page, as a command line and as Python.
import { copier, el, find } from "./dom.js";
import { onAnswer, spec } from "./spec.js";

const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const python = (value) => (value === null ? "None" : value === true ? "True" : value === false ? "False" : Array.isArray(value) ? `[${value.map(python).join(", ")}]` : typeof value === "object" ? `{${Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${python(one)}`).join(", ")}}` : JSON.stringify(value));

const command = () => (spec.answer?.serving ? "serve" : "run");
const file = () => (spec.base === "examples" && !spec.name.includes(".") ? `${spec.name}.yaml` : spec.name);

export function asCommand() {
  const init = spec.base === "examples" && spec.known ? `fabrictwin init ${spec.name}\n` : "";
  if (spec.known && !Object.keys(spec.edits).length && spec.text === spec.known) return `${init}fabrictwin ${command()} ${quote(file())}`;
  const mark = spec.answer.text.includes("\nEND\n") ? "END_OF_SPEC" : "END";
  return `${init}fabrictwin ${command()} - <<'${mark}'\n${spec.answer.text.trimEnd()}\n${mark}`;
}

export function asPython() {
  const edits = Object.entries(spec.edits), removes = edits.some(([, value]) => value === null);
  const known = spec.known && spec.text === spec.known && !removes;
  const load = known ? `spec = ft.load(${JSON.stringify(file())})` : `spec = ft.load(${python(spec.answer.data)})`;
  const changed = known && edits.length ? `\nspec = spec.with_({${edits.map(([key, value]) => `${JSON.stringify(key)}: ${python(value)}`).join(", ")}})` : "";
  return `import fabrictwin as ft\n\n${load}${changed}\nresult = ft.run(spec)\nprint(result)`;
}

export function sharing() {
  onAnswer(() => {
    if (!spec.answer?.data) { find("shared").replaceChildren(); return; }
    const block = (name, text) => [el("div", { class: "bar" }, el("h3", { class: "grow" }, name), copier(text)), el("pre", { tabindex: "0", role: "region", "aria-label": name }, text)];
    find("shared").replaceChildren(...block("On a command line", asCommand()), ...(spec.answer.serving ? [] : block("In Python", asPython())));
  });
}
