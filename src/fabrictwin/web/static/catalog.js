// The catalog: hardware figures, each with its source.
import { get } from "./api.js";
import { el, note, table } from "./dom.js";

export async function catalogView(place) {
  const all = await get("/api/catalog");
  const kinds = [...new Set(all.map((one) => one.kind))];
  const kind = el("select", { "aria-label": "kind", onchange: draw }, el("option", { value: "" }, "every kind"), kinds.map((one) => el("option", { value: one }, one)));
  const word = el("input", { type: "search", placeholder: "h100, qm9700, …", "aria-label": "search the catalog", oninput: draw });
  const list = el("div"), entry = el("div", { id: "entry", "aria-live": "polite" });
  function draw() {
    const wanted = word.value.trim().toLowerCase();
    const rows = all.filter((one) => (!kind.value || one.kind === kind.value) && (!wanted || `${one.name} ${one.title}`.toLowerCase().includes(wanted)));
    list.replaceChildren(rows.length ? table(["Kind", "Name", "What"], rows.map((one) => [el("span", { class: "soft" }, one.kind), el("button", { class: "name", onclick: () => show(one) }, one.name), one.title])) : note("Nothing has this word in its name."));
  }
  async function show(one) {
    const found = await get(`/api/catalog/${one.kind}/${encodeURIComponent(one.name)}`);
    const from = (row) => (row.url ? el("a", { href: row.url, target: "_blank", rel: "noopener noreferrer" }, row.source) : row.source);
    entry.replaceChildren(el("div", { class: "bar" }, el("button", { onclick: () => { entry.replaceChildren(); list.hidden = false; } }, "← All entries")), el("h2", {}, `${found.name} `, el("span", { class: "soft plain" }, found.title)), found.note ? note(found.note) : "",
      table(["Figure", "Value", "", "Source"], found.figures.map((row) => [el("span", { class: "name" }, row.figure), row.value, row.estimate ? el("span", { class: "badge" }, "estimate") : "", el("span", { class: "small" }, from(row))]), { label: `figures of ${found.name}` }),
      found.notes.length ? el("ul", { class: "soft small" }, found.notes.map((line) => el("li", {}, line))) : "");
    list.hidden = true;
    place.scrollIntoView();
  }
  place.replaceChildren(el("h2", {}, "Catalog"), el("div", { class: "bar" }, kind, word), list, entry);
  draw();
  return {};
}
