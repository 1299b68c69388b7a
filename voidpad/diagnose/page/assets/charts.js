// The whole decode at a glance: every slot over every pass with the first EOS as a line, and the masks left.

const EDGE = { left: 34, right: 8, top: 6, bottom: 16 };

class Charts {
  constructor(replay, span, seek) {
    Object.assign(this, { replay, span, seek, position: 0 });
    this.map = new Plot("Canvas over passes, first EOS", span, { high: span.longest, tall: span.alone ? 200 : 150, down: true });
    this.masks = new Plot("Masks left", span, { high: span.longest, tall: span.alone ? 96 : 74, down: false });
    this.image = el("canvas", { class: "map", "aria-hidden": "true" });
    this.image.width = Math.max(1, span.to - span.from);
    this.image.height = Math.max(1, span.longest);
    this.map.body.prepend(this.image);
    this.element = el("div", { class: "charts" }, this.map.element, this.masks.element);
    for (const plot of [this.map, this.masks]) plot.listen(seek);
    this.describe();
  }

  at(position) {
    return position - this.replay.probes;
  }

  describe() {
    const firsts = this.replay.passes.map((pass) => pass.first_eos), last = firsts.at(-1) ?? null;
    const k = firsts.findIndex((slot) => slot !== null);
    const story = k < 0 ? "No EOS is ever written." :
      `EOS first appears at slot ${firsts[k]} (${place(this.replay, k + 1)}); at the end it stands at ${last ?? "none"}.`;
    this.map.svg.setAttribute("aria-label", `First EOS slot over passes. ${story}`);
    const end = this.replay.passes.at(-1)?.masks ?? 0;
    this.masks.svg.setAttribute("aria-label", `Masks left over passes: ${this.replay.longest} slots, ${end} at the end.`);
  }

  layout() {
    for (const plot of [this.map, this.masks]) plot.layout();
    const { left, right, top, bottom } = EDGE;
    Object.assign(this.image.style, { left: `${left}px`, top: `${top}px` });
    this.image.style.width = `${Math.max(0, this.map.width - left - right)}px`;
    this.image.style.height = `${this.map.height - top - bottom}px`;
    this.map.line.setAttribute("d", this.path(this.map, (pass) => pass.first_eos));
    this.map.halo.setAttribute("d", this.map.line.getAttribute("d"));
    const masks = this.path(this.masks, (pass) => pass.masks), from = this.masks.x(this.at(0));
    this.masks.line.setAttribute("d", masks);
    const floor = this.masks.y(0), to = this.masks.x(this.at(this.replay.passes.length));
    this.masks.area.setAttribute("d", masks ? `${masks}L${to} ${floor}L${from} ${floor}Z` : "");
    this.show(this.position);
  }

  // A step line: a pass's value holds over the pass's column.
  path(plot, value) {
    let out = "", pen = false;
    this.replay.passes.forEach((pass, k) => {
      const v = value(pass), t = this.at(k + 1);
      if (v === null) { pen = false; return; }
      const y = plot.y(v).toFixed(1);
      out += `${pen ? "L" : "M"}${plot.x(t - 1).toFixed(1)} ${y}L${plot.x(t).toFixed(1)} ${y}`;
      pen = true;
    });
    return out;
  }

  show(position) {
    this.position = position;
    const { masks, first_eos } = this.replay.counts(position);
    this.map.point(this.at(position), first_eos, first_eos === null ? "none yet" : `slot ${first_eos}`);
    this.masks.point(this.at(position), masks, String(masks));
  }

  paint(mode, palette) {
    const { replay, image, span } = this, context = image.getContext("2d");
    const pixels = context.createImageData(image.width, image.height);
    for (let position = 1; position < replay.frames.length; position++) {
      const x = this.at(position) - 1 - span.from, frame = replay.frames[position];
      for (let slot = 0; slot < frame.length; slot++) {
        const value = mode === "state" ? null : replay.value(mode, position, slot);
        const colour = value === null ? palette.state[replay.state(position, slot)] : palette.heat(mode, value);
        pixels.data.set(colour, 4 * (slot * image.width + x));
      }
    }
    context.putImageData(pixels, 0, 0);
  }
}

// Axes, a line, a cursor, and a reading of the value under it.
class Plot {
  constructor(name, span, { high, tall, down }) {
    Object.assign(this, { span, high: Math.max(1, high), height: tall, down, width: 0 });
    this.reading = el("b");
    this.svg = svg("svg", { role: "img" });
    [this.area, this.halo, this.line] = ["area", "halo", "line"].map((kind) => svg("path", { class: kind }));
    [this.cursor, this.dot] = [svg("line", { class: "cursor" }), svg("circle", { class: "dot", r: 3.5 })];
    this.axes = svg("g", { class: "axes", "aria-hidden": "true" });
    this.svg.append(this.axes, this.area, this.halo, this.line, this.cursor, this.dot);
    this.body = el("div", { class: "plot" }, this.svg);
    this.element = el("figure", {}, el("figcaption", {}, name, " ", this.reading), this.body);
  }

  x(t) {
    const { from, to } = this.span, room = this.width - EDGE.left - EDGE.right;
    return EDGE.left + (room * (t - from)) / Math.max(1, to - from);
  }

  y(value) {
    const share = value / this.high, room = this.height - EDGE.top - EDGE.bottom;
    return EDGE.top + room * (this.down ? share : 1 - share);
  }

  layout() {
    this.width = Math.max(120, this.body.clientWidth);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.body.style.height = `${this.height}px`;
    const { from, to } = this.span, floor = this.height - EDGE.bottom;
    const word = (x, y, anchor, text) => svg("text", { x, y, "text-anchor": anchor }, text);
    const top = this.down ? 0 : this.high, base = this.down ? this.high : 0;
    this.axes.replaceChildren(
      svg("path", { d: `M${EDGE.left} ${EDGE.top}V${floor}H${this.width - EDGE.right}` }),
      word(EDGE.left - 5, EDGE.top + 8, "end", top), word(EDGE.left - 5, floor, "end", base),
      word(this.x(0), this.height - 3, from < 0 ? "middle" : "start", "0"),
      word(this.x(to), this.height - 3, "end", `pass ${to}`),
      from < 0 ? svg("path", { class: "split", d: `M${this.x(0)} ${EDGE.top}V${floor}` }) : "");
  }

  point(t, value, text) {
    const x = this.x(t);
    for (const [name, at] of [["x1", x], ["x2", x], ["y1", EDGE.top - 4], ["y2", this.height - EDGE.bottom]]) {
      this.cursor.setAttribute(name, at);
    }
    this.dot.setAttribute("visibility", value === null ? "hidden" : "visible");
    this.dot.setAttribute("cx", x);
    this.dot.setAttribute("cy", value === null ? 0 : this.y(value));
    this.reading.textContent = text;
  }

  listen(seek) {
    const to = (event) => {
      const box = this.svg.getBoundingClientRect(), room = this.width - EDGE.left - EDGE.right;
      const share = (event.clientX - box.left - EDGE.left) / room;
      seek(Math.round(this.span.from + share * (this.span.to - this.span.from)));
    };
    this.body.addEventListener("pointerdown", (event) => { this.body.setPointerCapture(event.pointerId); to(event); });
    this.body.addEventListener("pointermove", (event) => { if (event.buttons & 1) to(event); });
  }
}
