"use strict";
// The two timelines: every stage over the step, and the slices of one stage. They share one view of time.
// `find` gives the elements that they are drawn in and steered by; the answer stops them.
function timelines(data, find) {
  const step = data.step_ns;
  const view = { from: 0, to: step };
  const tip = find("tip");
  const ROW = 22, AXIS = 26, FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
  const plots = [], life = new AbortController();

  const sums = (differences) => { let t = 0; return Float64Array.from(differences, (d) => (t += d)); };
  const category = (key) => key.replace("exposed_", "");
  const color = (name) => {
    const css = getComputedStyle(document.documentElement);
    return css.getPropertyValue("--" + name).trim() || css.getPropertyValue("--other").trim();
  };
  // dark letters on a light ground and light ones on a dark
  const letters = (hex) => {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return 0.299 * r + 0.587 * g + 0.114 * b > 150 ? "#15171a" : "#fff";
  };
  const time = (ns) => {
    const [factor, unit] = ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
    return Number((ns / factor).toPrecision(4)) + " " + unit;
  };

  // rows: [{name, start, end, kind, text(i)}], all sorted by start
  function overviewRows() {
    return data.overview.rows.map((row) => {
      const start = sums(row.start), end = new Float64Array(start.length);
      end.set(start.subarray(1)); if (end.length) end[end.length - 1] = step;
      return {
        name: row.name, start, end,
        kind: row.state.map((s) => category(data.overview.states[s])),
        text: (i) => [data.names[data.overview.states[row.state[i]]], row.name],
      };
    });
  }

  function stageRows(part) {
    const start = sums(part.start);
    return data.stage.tracks.map((name, t) => {
      const index = []; for (let i = 0; i < start.length; i++) if (part.track[i] === t) index.push(i);
      return {
        name,
        start: Float64Array.from(index, (i) => start[i]),
        end: Float64Array.from(index, (i) => start[i] + part.width[i]),
        kind: index.map((i) => data.stage.category[part.label[i]]),
        label: index.map((i) => data.stage.labels[part.label[i]]),
        text: (k) => {
          const i = index[k], lines = [data.stage.labels[part.label[i]]];
          if (part.micro_batch[i] >= 0) lines.push("micro-batch " + part.micro_batch[i]);
          if (part.count && part.count[i] > 1) lines.push(part.count[i] + " operations, drawn as one");
          return lines;
        },
      };
    });
  }

  // first index whose end is after t
  const after = (ends, t) => {
    let low = 0, high = ends.length;
    while (low < high) { const mid = (low + high) >> 1; if (ends[mid] > t) high = mid; else low = mid + 1; }
    return low;
  };

  // One state a pixel, so that no two blend into a colour that the legend does not have: a pixel goes to the state
  // that is owed most time so far, "" where nothing is under way. Runs of [first pixel, end, state].
  function pixels(row, count) {
    const each = (view.to - view.from) / count, owed = new Map(), runs = [];
    let i = after(row.end, view.from);
    for (let p = 0; p < count; p++) {
      const from = view.from + p * each, to = from + each;
      let idle = each;
      while (i < row.start.length && row.start[i] < to) {
        const took = Math.min(row.end[i], to) - Math.max(row.start[i], from);
        if (took > 0) { owed.set(row.kind[i], (owed.get(row.kind[i]) || 0) + took); idle -= took; }
        if (row.end[i] > to) break;
        i++;
      }
      owed.set("", (owed.get("") || 0) + Math.max(idle, 0));
      let most = "", debt = -Infinity;
      for (const [kind, time] of owed) if (time > debt) { most = kind; debt = time; }
      owed.set(most, debt - each);
      const last = runs[runs.length - 1];
      if (last && last[2] === most) last[1] = p + 1; else runs.push([p, p + 1, most]);
    }
    return runs;
  }

  function ticks(width) {
    const wanted = Math.max(4, width / 110), raw = (view.to - view.from) / wanted;
    const power = 10 ** Math.floor(Math.log10(raw));
    const size = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= raw);
    const found = [];
    for (let t = Math.ceil(view.from / size) * size; t <= view.to; t += size) found.push(t);
    return found;
  }

  function plot(canvas, rowsNow) {
    const self = { canvas, hits: null };
    const gutter = (c, rows) => { // room for the longest name, but never most of a phone's width
      const longest = Math.max(0, ...rows.map((row) => c.measureText(row.name).width));
      return Math.min(Math.max(72, longest + 26), canvas.clientWidth * 0.42);
    };
    const x = (t, left, width) => left + (t - view.from) / (view.to - view.from) * width;

    self.draw = () => {
      const rows = rowsNow(), ratio = window.devicePixelRatio || 1;
      const dense = rows.length > 24 ? 12 : ROW;
      const w = canvas.clientWidth, h = rows.length * dense + AXIS + 6;
      canvas.style.height = h + "px";
      canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio);
      const c = canvas.getContext("2d");
      c.scale(ratio, ratio); c.font = dense < ROW ? FONT.replace("12px", "10px") : FONT; c.textBaseline = "middle";
      const left = gutter(c, rows), width = w - left - 8, soft = color("soft"), line = color("line");
      const paint = {}; // computed styles are slow to look up for every slice
      c.fillStyle = soft; c.strokeStyle = line; c.textAlign = "center"; c.lineWidth = 1;
      for (const t of ticks(width)) {
        const at = Math.round(x(t, left, width)) + 0.5;
        c.beginPath(); c.moveTo(at, AXIS - 4); c.lineTo(at, h); c.stroke();
        if (at - left > 18 && w - at > 26) c.fillText(time(t), at, AXIS / 2);
      }
      rows.forEach((row, r) => {
        const top = AXIS + r * dense, tall = dense - (dense < ROW ? 2 : 4);
        c.textAlign = "left"; c.fillStyle = soft;
        c.save(); c.beginPath(); c.rect(0, top, left - 8, dense); c.clip();
        c.fillText(row.name, 12, top + tall / 2 + 1); c.restore();
        c.save(); c.beginPath(); c.rect(left, top, width, dense); c.clip();
        const first = Math.round(left * ratio), count = Math.round(width * ratio);
        for (const [from, to, kind] of pixels(row, count)) {
          if (kind === "") continue;
          paint[kind] ||= color(kind);
          c.fillStyle = paint[kind];
          c.fillRect((first + from) / ratio, top, (to - from) / ratio, tall);
        }
        for (let i = after(row.end, view.from); i < row.start.length && row.start[i] < view.to; i++) {
          const a = x(row.start[i], left, width), b = x(row.end[i], left, width);
          if (b - a > 4) { c.fillStyle = color("panel"); c.fillRect(Math.round(b * ratio) / ratio - 1 / ratio, top, 1 / ratio, tall); }
          if (row.label && b - a > 60) {
            c.fillStyle = letters(paint[row.kind[i]] || "#000000"); c.save(); c.beginPath(); c.rect(a, top, b - a - 3, tall); c.clip();
            c.fillText(row.label[i], Math.max(a, left) + 5, top + tall / 2 + 1); c.restore();
          }
        }
        c.restore();
      });
      self.hits = { rows, left, width, dense };
    };

    self.at = (event) => { // the slice under the pointer
      const box = canvas.getBoundingClientRect(), { rows, left, width, dense } = self.hits;
      const row = rows[Math.floor((event.clientY - box.top - AXIS) / dense)];
      const t = view.from + (event.clientX - box.left - left) / width * (view.to - view.from);
      if (!row || t < view.from || t > view.to) return null;
      const slack = (view.to - view.from) / width, i = after(row.end, t - slack);
      return i < row.start.length && row.start[i] <= t + slack ? { row, i } : null;
    };

    const timeAt = (clientX) => {
      const { left, width } = self.hits, box = canvas.getBoundingClientRect();
      return view.from + Math.min(1, Math.max(0, (clientX - box.left - left) / width)) * (view.to - view.from);
    };
    canvas.addEventListener("wheel", (event) => {
      const whole = view.to - view.from >= step * 0.9999;
      if (whole && event.deltaY > 0) return; // let the page scroll on
      event.preventDefault();
      zoom(Math.exp(event.deltaY * 0.002), timeAt(event.clientX));
    }, { passive: false });
    const fingers = new Map();
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, event.clientX);
      canvas.setPointerCapture(event.pointerId); canvas.classList.add("dragging");
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!fingers.has(event.pointerId)) return hover(event);
      const before = [...fingers.values()];
      fingers.set(event.pointerId, event.clientX);
      const now = [...fingers.values()], scale = (view.to - view.from) / self.hits.width;
      if (now.length === 2) {
        const gap = Math.abs(before[0] - before[1]) || 1;
        zoom(gap / (Math.abs(now[0] - now[1]) || 1), timeAt((now[0] + now[1]) / 2));
      } else move((before[0] - now[0]) * scale);
    });
    const lift = (event) => { fingers.delete(event.pointerId); canvas.classList.remove("dragging"); };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
    canvas.addEventListener("dblclick", reset);
    canvas.addEventListener("keydown", (event) => {
      const span = view.to - view.from, middle = (view.from + view.to) / 2;
      const keys = {
        ArrowLeft: () => move(-span / 8), ArrowRight: () => move(span / 8),
        "+": () => zoom(0.7, middle), "=": () => zoom(0.7, middle), "-": () => zoom(1.4, middle), 0: reset,
      };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
    function hover(event) {
      const hit = self.at(event);
      if (!hit) { tip.style.display = "none"; return; }
      const { row, i } = hit, lines = row.text(i);
      lines.push(time(row.end[i] - row.start[i]) + " from " + time(row.start[i]));
      tip.replaceChildren(...lines.map((text) => { const d = document.createElement("div"); d.textContent = text; return d; }));
      tip.style.display = "block";
      tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
      tip.style.top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + "px";
    }
    plots.push(self);
  }

  let pending = false;
  const draw = () => { if (!pending) { pending = true; requestAnimationFrame(() => { pending = false; plots.forEach((p) => p.draw()); }); } };
  function show(from, to) {
    const span = Math.min(step, Math.max(to - from, Math.min(step, 100)));
    view.from = Math.min(Math.max(0, from), step - span); view.to = view.from + span;
    tip.style.display = "none"; draw();
  }
  function zoom(factor, around) { show(around - (around - view.from) * factor, around + (view.to - around) * factor); }
  function move(by) { show(view.from + by, view.to + by); }
  function reset() { show(0, step); }

  if (step > 0) {
    const overview = overviewRows();
    plot(find("overview"), () => overview);
    const all = stageRows(data.stage.all), close = data.stage.close_up, near = close && stageRows(close);
    plot(find("stage"), () => (close && view.from >= close.from && view.to <= close.to ? near : all));
    const on = (id, act) => { const b = find(id); if (b) b.addEventListener("click", act, { signal: life.signal }); };
    on("zoom-in", () => zoom(0.5, (view.from + view.to) / 2));
    on("zoom-out", () => zoom(2, (view.from + view.to) / 2));
    on("zoom-reset", reset);
    on("zoom-close", () => show(close.from, close.to));
    window.addEventListener("resize", draw, { signal: life.signal });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw, { signal: life.signal });
    draw();
  }
  return () => life.abort();
}
if (document.getElementById("data")) {
  timelines(JSON.parse(document.getElementById("data").textContent), (id) => document.getElementById(id));
}
