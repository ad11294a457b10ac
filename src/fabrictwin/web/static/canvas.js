// The map as a canvas: hosts in racks under their leaf switches, spines above their pod, cores above all.
// What is drawn is kept as an image, larger than what is seen: moving it shifts the image, and only what comes to
// rest is drawn anew.
const HOST = 10, GAP = 3, BAR = 8, MARGIN = 26, COLUMNS = 8;
const BEYOND = 0.5; // of the view, that the image has on each side
const BUCKETS = 16;
const LINES = 4000; // between switches that are drawn without being asked for

export class FabricCanvas {
  constructor(canvas, chosen) {
    Object.assign(this, { canvas, chosen, data: null, view: { x: 0, y: 0, scale: 1 }, image: null, selected: null, lines: [], frame: 0 });
    this.listen();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.anew());
    addEventListener("resize", () => { if (this.data && canvas.clientWidth) { this.fit(); } });
  }

  load(data) {
    this.data = data;
    this.place();
    Object.assign(this, { selected: null, lines: [] });
    this.fit();
  }

  // Names.
  hostName(i) { const its = this.data.hosts; return its.names ? its.names[i] : `${its.stem}${i}`; }
  switchName(i) { const its = this.data.switches; return its.names ? its.names[i] : `${its.stem}${i}`; }
  someNames(most) {
    const found = [];
    for (let i = 0; i < Math.min(most / 2, this.data.hosts.count); i += 1) found.push(this.hostName(i));
    for (let i = 0; i < Math.min(most / 2, this.data.switches.count); i += 1) found.push(this.switchName(i));
    return found;
  }
  named(name) {
    if (!this.data) return null;
    if (!this.names) {
      this.names = new Map();
      for (let i = 0; i < this.data.hosts.count; i += 1) this.names.set(this.hostName(i), ["host", i]);
      for (let i = 0; i < this.data.switches.count; i += 1) this.names.set(this.switchName(i), ["switch", i]);
    }
    const found = this.names.get(name);
    return found ? this.node(...found) : null;
  }
  node(kind, at) {
    const { hosts, switches, racks } = this.data;
    if (kind === "host") return { kind, at, name: this.hostName(at), said: `${hosts.gpus[at] ? `${hosts.gpus[at]} GPUs, ` : ""}rack ${hosts.rack[at] + 1} of ${racks.switches.length}` };
    const tier = switches.tier[at], pod = switches.pod[at];
    return { kind, at, name: this.switchName(at), said: `${{ 1: "leaf", 2: "spine", 3: "core" }[tier] ?? "switch"}${pod >= 0 ? `, pod ${pod}` : ""}` };
  }
  neighbours(node) {
    const { adapters, trunks } = this.data, found = new Map();
    const add = (kind, at, cables, use) => { const key = kind + at, known = found.get(key) ?? { cables: 0, kind, at }; known.cables += cables; if (use !== undefined) known.use = Math.max(known.use ?? 0, use); found.set(key, known); };
    for (let i = 0; i < adapters.host.length; i += 1) {
      if (node.kind === "host" && adapters.host[i] === node.at) add("switch", adapters.switch[i], 1, adapters.use?.[i]);
      if (node.kind === "switch" && adapters.switch[i] === node.at) add("host", adapters.host[i], 1, adapters.use?.[i]);
    }
    if (node.kind === "switch") for (let i = 0; i < trunks.a.length; i += 1) {
      if (trunks.a[i] === node.at) add("switch", trunks.b[i], trunks.cables[i], trunks.use?.[i]);
      if (trunks.b[i] === node.at) add("switch", trunks.a[i], trunks.cables[i], trunks.use?.[i]);
    }
    return [...found.values()].map((one) => { const its = this.node(one.kind, one.at); return { ...one, name: its.name, node: its }; });
  }

  /** Give every host and switch a rectangle of the world. */
  place() {
    const { hosts, racks, switches, adapters, trunks } = this.data;
    const box = (count) => ({ x: new Float32Array(count), y: new Float32Array(count), w: new Float32Array(count) });
    this.names = null;
    this.host = box(hosts.count);
    this.switch = box(switches.count);
    this.racks = [];
    const members = racks.switches.map(() => []);
    hosts.rack.forEach((rack, host) => members[rack].push(host));
    const podOf = (rack) => { const first = racks.switches[rack][0]; return first === undefined ? -2 : switches.pod[first]; };
    const pods = new Map();
    racks.switches.forEach((_, rack) => pods.set(podOf(rack), [...(pods.get(podOf(rack)) ?? []), rack]));
    // leaves stand in the first rack that hangs on them; what is above, over its pod or over everything
    const home = new Map();
    racks.switches.forEach((some, rack) => some.forEach((one) => { if (!home.has(one)) home.set(one, rack); }));
    const above = new Map(), top = [];
    for (let i = 0; i < switches.count; i += 1) {
      if (home.has(i)) continue;
      const pod = switches.pod[i];
      if (pods.has(pod) && pod >= 0 && pods.size > 1) above.set(pod, [...(above.get(pod) ?? []), i]); else top.push(i);
    }
    const rackWide = COLUMNS * (HOST + GAP) - GAP;
    const tall = (rack) => { const leaves = racks.switches[rack].filter((one) => home.get(one) === rack).length; return Math.ceil(leaves / 4) * (BAR + GAP) + Math.ceil(members[rack].length / COLUMNS) * (HOST + GAP) + 4; };
    const blocks = [...pods.entries()].sort((a, b) => a[0] - b[0]).map(([pod, some]) => {
      const height = Math.max(...some.map(tall)), across = Math.max(1, Math.ceil(Math.sqrt(some.length * (height + MARGIN) / (rackWide + MARGIN) * 1.9)));
      const over = above.get(pod) ?? [], wide = Math.min(across, some.length) * (rackWide + MARGIN) - MARGIN;
      return { pod, some, height, across, over, wide, head: over.length ? this.bandTall(over.length, wide) + 18 : 0, tall: Math.ceil(some.length / across) * (height + MARGIN) };
    });
    const most = blocks.reduce((sum, one) => sum + (one.wide + 2 * MARGIN) * (one.tall + one.head + MARGIN), 0);
    const row = Math.max(Math.sqrt(most * 1.8), ...blocks.map((one) => one.wide));
    let x = 0, y = 0, line = 0, wide = 0;
    for (const one of blocks) {
      if (x > 0 && x + one.wide > row) { x = 0; y += line + 2 * MARGIN; line = 0; }
      one.x = x;
      one.y = y;
      x += one.wide + 2 * MARGIN;
      wide = Math.max(wide, one.x + one.wide);
      line = Math.max(line, one.head + one.tall);
    }
    const head = top.length ? this.bandTall(top.length, wide) + 34 : 0;
    for (const tier of [top]) this.band(tier, 0, 0, wide);
    for (const one of blocks) {
      this.band(one.over, one.x, head + one.y, one.wide);
      one.some.forEach((rack, k) => {
        const left = one.x + (k % one.across) * (rackWide + MARGIN), high = head + one.y + one.head + Math.floor(k / one.across) * (one.height + MARGIN);
        const leaves = racks.switches[rack].filter((its) => home.get(its) === rack), each = (rackWide - 3 * GAP) / 4;
        leaves.forEach((its, j) => this.put(this.switch, its, left + (j % 4) * (each + GAP), high + Math.floor(j / 4) * (BAR + GAP), each));
        const under = high + Math.ceil(leaves.length / 4) * (BAR + GAP) + 4;
        members[rack].forEach((its, j) => this.put(this.host, its, left + (j % COLUMNS) * (HOST + GAP), under + Math.floor(j / COLUMNS) * (HOST + GAP), HOST));
        this.racks.push({ rack, x: left - 6, y: high - 6, w: rackWide + 12, h: tall(rack) + 8 });
      });
    }
    this.world = { w: Math.max(wide, rackWide), h: head + y + line - MARGIN };
    this.hostUse = adapters.use ? new Float32Array(hosts.count) : null;
    this.switchUse = adapters.use ? new Float32Array(switches.count) : null;
    if (adapters.use) {
      adapters.use.forEach((use, i) => { this.hostUse[adapters.host[i]] = Math.max(this.hostUse[adapters.host[i]], use); this.switchUse[adapters.switch[i]] = Math.max(this.switchUse[adapters.switch[i]], use); });
      trunks.use.forEach((use, i) => { for (const end of [trunks.a[i], trunks.b[i]]) this.switchUse[end] = Math.max(this.switchUse[end], use); });
      this.most = Math.max(1e-9, ...this.switchUse, ...this.hostUse);
    }
    this.cells = null;
  }
  put(boxes, at, x, y, w) { boxes.x[at] = x; boxes.y[at] = y; boxes.w[at] = w; }
  bandTall(count, wide) { return Math.ceil(count / this.perRow(count, wide)) * (BAR + GAP); }
  perRow(count, wide) { return Math.max(1, Math.min(count, Math.floor(wide / (18 + GAP)))); }
  band(some, x, y, wide) {
    const per = this.perRow(some.length, wide), each = Math.min(60, (wide + GAP) / per - GAP), indent = Math.max(0, (wide - per * (each + GAP) + GAP) / 2);
    some.forEach((one, k) => this.put(this.switch, one, x + indent + (k % per) * (each + GAP), y + Math.floor(k / per) * (BAR + GAP), each));
  }

  // The view: world to screen is (x - view.x) * scale.
  size() { return { w: this.canvas.clientWidth || 600, h: this.canvas.clientHeight || 420 }; }
  fit() {
    const { w, h } = this.size(), room = 24;
    const scale = Math.min((w - room) / this.world.w, (h - room) / this.world.h, 6);
    this.view = { scale, x: this.world.w / 2 - w / 2 / scale, y: this.world.h / 2 - h / 2 / scale };
    this.anew();
  }
  zoom(factor, at) {
    if (!this.data) return;
    const { w, h } = this.size(), px = at?.x ?? w / 2, py = at?.y ?? h / 2, v = this.view;
    const scale = Math.min(Math.max(v.scale * factor, 0.02), 12), real = scale / v.scale;
    v.x += (px / v.scale) * (1 - 1 / real);
    v.y += (py / v.scale) * (1 - 1 / real);
    v.scale = scale;
    this.later();
  }
  move(dx, dy) { this.view.x -= dx / this.view.scale; this.view.y -= dy / this.view.scale; this.draw(); }
  focus(node) {
    const its = node.kind === "host" ? this.host : this.switch, { w, h } = this.size();
    const scale = Math.max(this.view.scale, 2);
    this.view = { scale, x: its.x[node.at] + its.w[node.at] / 2 - w / 2 / scale, y: its.y[node.at] - h / 2 / scale };
    this.anew();
  }

  select(node) {
    this.selected = node;
    this.lines = node ? this.neighbours(node).map((one) => [[node.kind, node.at], [one.kind, one.at], one.use]) : [];
    this.anew();
  }
  /** Mark the links of a path by their names: `leaf-2/17 > spine-0/3`. */
  path(links) {
    const end = (text) => { const its = this.named(text.split("/")[0]); return its && [its.kind, its.at]; };
    this.selected = null;
    this.lines = links.map((link) => link.split(" > ").map(end)).filter(([a, b]) => a && b && String(a) !== String(b)).map(([a, b]) => [a, b, undefined, true]);
    if (this.lines.length) {
      const xs = this.lines.flat().filter(Array.isArray).map(([kind, at]) => [this[kind].x[at], this[kind].y[at]]), { w, h } = this.size();
      const low = [0, 1].map((k) => Math.min(...xs.map((one) => one[k])) - 40), high = [0, 1].map((k) => Math.max(...xs.map((one) => one[k])) + 60);
      const scale = Math.min(w / (high[0] - low[0]), h / (high[1] - low[1]), 4);
      this.view = { scale, x: (low[0] + high[0]) / 2 - w / 2 / scale, y: (low[1] + high[1]) / 2 - h / 2 / scale };
    }
    this.anew();
  }

  // Drawing.
  anew() { this.image = null; this.draw(); }
  later() { clearTimeout(this.settling); this.settling = setTimeout(() => this.anew(), 90); this.draw(); }
  draw() { if (!this.frame && this.data) this.frame = requestAnimationFrame(() => { this.frame = 0; this.paint(); }); }
  covers() {
    const { w, h } = this.size(), v = this.view, its = this.image;
    return its && its.scale === v.scale && v.x >= its.x && v.y >= its.y && v.x + w / v.scale <= its.x + its.w / its.scale && v.y + h / v.scale <= its.y + its.h / its.scale;
  }
  paint() {
    const { canvas } = this, { w, h } = this.size(), ratio = Math.min(devicePixelRatio || 1, 2), v = this.view;
    if (!canvas.clientWidth) return;
    if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) { canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio); this.image = null; }
    if (!this.image || (this.image.scale === v.scale && !this.covers())) this.image = this.picture(ratio);
    const c = canvas.getContext("2d"), its = this.image, factor = v.scale / its.scale;
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.clearRect(0, 0, canvas.width, canvas.height);
    c.drawImage(its.canvas, (its.x - v.x) * v.scale * ratio, (its.y - v.y) * v.scale * ratio, its.canvas.width * factor, its.canvas.height * factor);
  }
  picture(ratio) {
    const size = this.size(), v = this.view, w = size.w * (1 + 2 * BEYOND), h = size.h * (1 + 2 * BEYOND);
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(h * ratio);
    const x = v.x - (size.w * BEYOND) / v.scale, y = v.y - (size.h * BEYOND) / v.scale, c = canvas.getContext("2d");
    c.setTransform(ratio * v.scale, 0, 0, ratio * v.scale, -x * v.scale * ratio, -y * v.scale * ratio);
    this.scene(c, { x, y, right: x + w / v.scale, bottom: y + h / v.scale });
    return { canvas, x, y, w, h, scale: v.scale };
  }
  scene(c, seen) {
    const css = getComputedStyle(document.documentElement), colour = (name) => css.getPropertyValue(`--${name}`).trim(), px = 1 / this.view.scale;
    const { trunks, switches } = this.data, heat = colour("heat");
    c.lineWidth = px;
    c.strokeStyle = colour("line");
    c.fillStyle = colour("panel");
    for (const one of this.racks) if (one.x < seen.right && one.x + one.w > seen.x && one.y < seen.bottom && one.y + one.h > seen.y) { c.fillStyle = colour("page"); c.fillRect(one.x, one.y, one.w, one.h); c.strokeRect(one.x, one.y, one.w, one.h); }
    if (trunks.a.length <= LINES) {
      c.globalAlpha = trunks.a.length > 600 ? 0.35 : 0.8;
      c.beginPath();
      for (let i = 0; i < trunks.a.length; i += 1) { c.moveTo(...this.end("switch", trunks.a[i])); c.lineTo(...this.end("switch", trunks.b[i])); }
      c.stroke();
      c.globalAlpha = 1;
    }
    const { adapters } = this.data;
    if (adapters.host.length <= LINES / 4) {
      c.beginPath();
      for (let i = 0; i < adapters.host.length; i += 1) { c.moveTo(...this.end("host", adapters.host[i])); c.lineTo(...this.end("switch", adapters.switch[i])); }
      c.stroke();
    }
    const shade = (use) => `rgba(${heat}, ${(0.1 + 0.9 * use).toFixed(3)})`;
    this.boxes(c, this.host, this.data.hosts.count, HOST, seen, this.hostUse, (bucket) => (bucket < 0 ? colour("recompute") : shade(bucket / (BUCKETS - 1))));
    const tiers = { 1: "compute", 2: "optimizer", 3: "dp" };
    if (this.switchUse) this.boxes(c, this.switch, switches.count, BAR, seen, this.switchUse, (bucket) => shade(bucket / (BUCKETS - 1)), colour("faint"));
    else for (const tier of new Set(switches.tier)) this.boxes(c, this.switch, switches.count, BAR, seen, null, () => colour(tiers[tier] ?? "other"), null, (i) => switches.tier[i] === tier);
    this.marks(c, colour, px);
    if (this.view.scale > 1.6) this.labels(c, colour("ink"), seen);
  }
  /** Rectangles by colour, one path each. */
  boxes(c, its, count, tall, seen, use, colour, edge = null, only = null) {
    const buckets = new Map();
    for (let i = 0; i < count; i += 1) {
      if (only && !only(i)) continue;
      const x = its.x[i], y = its.y[i];
      if (x > seen.right || y > seen.bottom || x + its.w[i] < seen.x || y + tall < seen.y) continue;
      const bucket = use ? Math.min(BUCKETS - 1, Math.round((use[i] / this.most) * (BUCKETS - 1))) : -1;
      const some = buckets.get(bucket);
      if (some) some.push(i); else buckets.set(bucket, [i]);
    }
    for (const [bucket, some] of buckets) {
      c.beginPath();
      for (const i of some) c.rect(its.x[i], its.y[i], its.w[i], tall);
      c.fillStyle = colour(bucket);
      c.fill();
      if (edge) { c.strokeStyle = edge; c.stroke(); }
    }
  }
  end(kind, at) { const its = this[kind]; return [its.x[at] + its.w[at] / 2, its.y[at] + (kind === "host" ? HOST : BAR) / 2]; }
  marks(c, colour, px) {
    for (const [from, to, use, strong] of this.lines) {
      c.strokeStyle = strong ? colour("pp") : colour("compute");
      c.lineWidth = px * (strong ? 3.5 : use === undefined ? 1.4 : 1 + 4 * use);
      c.beginPath();
      c.moveTo(...this.end(...from));
      c.lineTo(...this.end(...to));
      c.stroke();
    }
    const ends = this.selected ? [[this.selected.kind, this.selected.at]] : this.lines.filter((one) => one[3]).flatMap((one) => [one[0], one[1]]);
    c.strokeStyle = colour("pp");
    c.lineWidth = 2.5 * px;
    for (const [kind, at] of ends) { const its = this[kind]; c.strokeRect(its.x[at] - 2 * px, its.y[at] - 2 * px, its.w[at] + 4 * px, (kind === "host" ? HOST : BAR) + 4 * px); }
  }
  labels(c, ink, seen) {
    c.textAlign = "center";
    c.textBaseline = "middle";
    const page = getComputedStyle(document.documentElement).getPropertyValue("--page").trim();
    const on = (use, i, otherwise) => { c.fillStyle = use ? (use[i] / this.most > 0.55 ? page : ink) : otherwise; };
    const say = (its, i, tall, name) => {
      if (its.x[i] > seen.right || its.y[i] > seen.bottom || its.x[i] + its.w[i] < seen.x || its.y[i] + tall < seen.y) return;
      c.font = `${Math.min(3.4, (its.w[i] / Math.max(4, name.length)) * 1.75)}px system-ui, sans-serif`;
      c.fillText(name, its.x[i] + its.w[i] / 2, its.y[i] + tall / 2);
    };
    if (this.view.scale > 3) for (let i = 0; i < this.data.hosts.count; i += 1) { on(this.hostUse, i, "#15171a"); say(this.host, i, HOST, this.hostName(i)); }
    for (let i = 0; i < this.data.switches.count; i += 1) { on(this.switchUse, i, "#fff"); say(this.switch, i, BAR, this.switchName(i)); }
  }

  hit(px, py) {
    const x = px / this.view.scale + this.view.x, y = py / this.view.scale + this.view.y, slack = 4 / this.view.scale;
    const look = (kind, its, count, tall) => { for (let i = 0; i < count; i += 1) if (x >= its.x[i] - slack && x <= its.x[i] + its.w[i] + slack && y >= its.y[i] - slack && y <= its.y[i] + tall + slack) return this.node(kind, i); return null; };
    return look("switch", this.switch, this.data.switches.count, BAR) ?? look("host", this.host, this.data.hosts.count, HOST);
  }
  listen() {
    const { canvas } = this, fingers = new Map();
    let moved = 0;
    const place = (event) => { const box = canvas.getBoundingClientRect(); return { x: event.clientX - box.left, y: event.clientY - box.top }; };
    canvas.addEventListener("wheel", (event) => { if (!this.data) return; event.preventDefault(); this.zoom(Math.exp(-event.deltaY * 0.0016), place(event)); }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, place(event)); moved = 0; canvas.setPointerCapture(event.pointerId); canvas.classList.add("dragging"); });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.data) return;
      const now = place(event);
      if (!fingers.has(event.pointerId)) { this.hover(event, now); return; }
      const before = fingers.get(event.pointerId);
      moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      if (fingers.size === 2) {
        const [a, b] = [...fingers.values()], gap = Math.hypot(a.x - b.x, a.y - b.y) || 1;
        fingers.set(event.pointerId, now);
        const [p, q] = [...fingers.values()];
        this.zoom(Math.hypot(p.x - q.x, p.y - q.y) / gap, { x: (p.x + q.x) / 2, y: (p.y + q.y) / 2 });
        return;
      }
      fingers.set(event.pointerId, now);
      this.move(now.x - before.x, now.y - before.y);
    });
    const lift = (event) => { if (fingers.delete(event.pointerId) && moved < 5 && this.data && event.type === "pointerup") this.chosen(this.hit(place(event).x, place(event).y)); canvas.classList.remove("dragging"); };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", () => { document.getElementById("tip").style.display = "none"; });
    canvas.addEventListener("keydown", (event) => {
      const step = 60, keys = { ArrowLeft: () => this.move(step, 0), ArrowRight: () => this.move(-step, 0), ArrowUp: () => this.move(0, step), ArrowDown: () => this.move(0, -step), "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5), 0: () => this.fit() };
      if (keys[event.key] && this.data) { event.preventDefault(); keys[event.key](); }
    });
  }
  hover(event, now) {
    const node = this.hit(now.x, now.y), tip = document.getElementById("tip");
    if (!node) { tip.style.display = "none"; return; }
    const use = node.kind === "host" ? this.hostUse?.[node.at] : this.switchUse?.[node.at];
    tip.replaceChildren(...[node.name, node.said, ...(use === undefined ? [] : [`busiest cable ${(100 * use).toFixed(1)}%`])].map((text) => { const line = document.createElement("div"); line.textContent = text; return line; }));
    tip.style.display = "block";
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  }
}
