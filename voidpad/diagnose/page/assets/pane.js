// One trace on the page: its verdict, its probes, and the canvas as tokens.

const GUTTER = 38, GAP = 3;

class Pane {
  constructor(replay, span, seek) {
    Object.assign(this, { replay, seek, columns: 0, cursor: 0, cells: [], position: 0, mode: "state", guessing: false });
    this.now = el("p", { class: "now" });
    this.grid = el("div", { class: "grid", role: "grid", "aria-readonly": "true" });
    this.grid.setAttribute("aria-label", `Canvas of ${title(replay)}, ${replay.longest} slots`);
    this.text = el("p", { class: "text", tabindex: "0", role: "group", "aria-label": "Answer so far" });
    this.charts = new Charts(replay, span, seek);
    this.element = el("section", { class: "pane", "aria-label": title(replay) },
      this.heading(), this.probeRows(),
      el("div", { class: "stage" }, el("div", { class: "board" }, this.now, this.grid, this.text), this.charts.element));
    for (let slot = 0; slot < replay.longest; slot++) this.cells.push(this.cell(slot));
    this.grid.addEventListener("keydown", (event) => this.roam(event));
    this.grid.addEventListener("focusin", (event) => this.rove(event.target));
    this.letters = this.widest();
  }

  heading() {
    const { header, name } = this.replay, { stop, facts } = verdict(this.replay);
    return el("header", { class: "head" },
      el("h2", {}, header.model, " ", el("span", { class: "chip" }, header.plan_name)),
      el("p", { class: "verdict" }, el("strong", {}, stop), el("span", {}, facts)),
      el("p", { class: "origin" }, `${name} · family ${header.family} · seed ${header.seed}`));
  }

  // The expansion's probes: what the model thought of each blank canvas before decoding began.
  probeRows() {
    const asked = this.replay.passes.map((pass, k) => ({ pass, k })).filter(({ pass }) => pass.phase !== "decode");
    this.strips = asked.map(({ pass, k }) => {
      const strip = el("canvas", { width: Math.max(1, pass.length), height: 1, "aria-hidden": "true" });
      strip.style.width = `${(100 * pass.length) / this.replay.longest}%`;
      const signal = Object.entries(pass.signal).map(([name, value]) => `${name} ${figure(value)}`).join("  ");
      const button = el("button", { type: "button", class: "probe" },
        el("b", {}, `probe ${k + 1}`), el("span", { class: "track" }, strip), el("span", {}, `${pass.length} slots`),
        el("span", { class: "signal" }, signal));
      button.addEventListener("click", () => this.seek(k + 1 - this.replay.probes));
      return { strip, button, position: k + 1 };
    });
    if (!asked.length) return el("div", { class: "probes" }, el("p", { class: "none" }, "no length probes"));
    const named = { role: "group", "aria-label": "Length probes before the decode" };
    return el("div", { class: "probes", ...named }, ...this.strips.map((row) => row.button));
  }

  cell(slot) {
    const made = el("div", { class: "slot", role: "gridcell", tabindex: slot ? "-1" : "0" }, el("span"));
    made.slot_ = slot;
    return made;
  }

  // Most tokens should fit their tile; the rest are shortened and whole in the card.
  widest() {
    const lengths = [...new Set(this.replay.passes.flatMap((pass) => pass.commits.map((commit) => commit[1])))]
      .map((id) => shown(this.replay.label(id)).length).sort((a, b) => a - b);
    return Math.min(9, Math.max(4, lengths[Math.floor(lengths.length * 0.9)] ?? 4));
  }

  layout() {
    const room = this.grid.clientWidth - GUTTER, least = (innerWidth > 620 ? this.letters * 7.4 + 8 : this.letters * 6.4 + 4) + GAP;
    let columns = 4;
    while (columns < 64 && columns < this.replay.longest && room / (columns * 2) >= least) columns *= 2;
    if (columns === this.columns) return;
    this.columns = columns;
    this.grid.style.setProperty("--columns", columns);
    this.grid.setAttribute("aria-colcount", columns);
    const rows = [];
    for (let at = 0; at < this.cells.length; at += columns) {
      const gutter = el("span", { class: "gutter", "aria-hidden": "true" }, String(at));
      rows.push(el("div", { role: "row", class: "row" }, gutter, ...this.cells.slice(at, at + columns)));
    }
    this.grid.replaceChildren(...rows);
  }

  show(position, { mode, guessing, palette }) {
    Object.assign(this, { position, mode, guessing, palette });
    for (let slot = 0; slot < this.cells.length; slot++) this.paint(slot);
    for (const row of this.strips) row.button.classList.toggle("here", row.position === position);
    this.tell();
    this.charts.show(position);
  }

  paint(slot) {
    const { replay, position, mode } = this, frame = replay.frames[position], cell = this.cells[slot];
    const outside = slot >= frame.length, id = outside ? -1 : frame.ids[slot];
    const state = outside ? "out" : replay.state(position, slot);
    const value = outside || mode === "state" ? null : replay.value(mode, position, slot);
    const guess = this.guessing && state === "mask" ? replay.guess(position, slot) : null;
    const look = `slot ${state}${this.flags(slot, frame)}${this.warmth(value)}${guess === null ? "" : " guess"}`;
    if (cell.look_ !== look) cell.className = cell.look_ = look;
    const ground = value === null ? "" : `rgb(${this.palette.heat(mode, value).slice(0, 3)})`;
    if (cell.ground_ !== ground) cell.style.backgroundColor = cell.ground_ = ground;
    const words = `${look} ${guess ?? id}`;
    if (cell.words_ !== words) this.write(cell, slot, state, guess ?? id);
    cell.words_ = words;
  }

  warmth(value) {
    if (value === null) return "";
    return this.palette.bright(this.mode, value) ? " heat bright" : " heat";
  }

  flags(slot, frame) {
    if (slot >= frame.length || !frame.pass) return "";
    const { open, window, phase } = frame.pass;
    const fresh = frame.born[slot] === this.position - 1 && frame.ids[slot] !== this.replay.roles.mask;
    const later = phase !== "probe" && window > 0 && slot >= open + window;
    return (fresh ? " fresh" : "") + (later ? " later" : "") + (slot === frame.eos ? " first" : "");
  }

  write(cell, slot, state, id) {
    const blank = state === "out" || id === this.replay.roles.mask;
    const label = blank ? "" : shown(this.replay.label(id));
    const fresh = cell.classList.contains("fresh") ? ", just committed" : "";
    cell.firstChild.textContent = label;
    cell.firstChild.className = label.length > this.letters ? "long" : "";
    cell.setAttribute("aria-hidden", state === "out");
    cell.setAttribute("aria-label", `slot ${slot}: ${blank ? "" : label + ", "}${STATES[state] ?? "none"}${fresh}`);
  }

  tell() {
    const { replay, position } = this, { masks, first_eos } = replay.counts(position), frame = replay.frames[position];
    const ends = first_eos === null ? "no EOS yet" : `first EOS at slot ${first_eos}`;
    const change = edits(frame.pass);
    this.summary = `${place(replay, position)}: ${count(masks, "mask")} left, ${ends}${change ? ", " + change : ""}`;
    this.now.replaceChildren(el("b", {}, place(replay, position)), ` ${frame.length} slots`,
      change ? el("i", {}, change) : "");
    this.text.replaceChildren(...this.prose(frame));
  }

  // The answer as it would read now; a run of masks is one gap.
  prose(frame) {
    const parts = [], glue = (this.glue ??= this.replay.glue);
    let gap = 0, words = "";
    const flush = () => {
      if (words) parts.push(words);
      if (gap) parts.push(el("span", { class: "gap" }, gap > 3 ? `${gap} masked` : "·".repeat(gap)));
      [words, gap] = ["", 0];
    };
    for (let slot = 0; slot < frame.eos; slot++) {
      const masked = frame.ids[slot] === this.replay.roles.mask;
      if (masked ? words : gap) flush();
      if (masked) gap++;
      else if (!this.replay.pads.has(frame.ids[slot])) words += (words && glue) + this.replay.label(frame.ids[slot]);
    }
    flush();
    return parts.length ? parts : [el("span", { class: "gap" }, "nothing")];
  }

  repaint() {
    for (const { strip, position } of this.strips) this.strip(strip, position);
    this.charts.paint(this.mode, this.palette);
  }

  strip(strip, position) {
    const { palette } = this, fallback = this.replay.has("void") ? "void" : "eos", kind = this.mode === "state" ? fallback : this.mode;
    const context = strip.getContext("2d"), image = context.createImageData(strip.width, 1);
    const column = this.replay.column(kind, position - 1);
    for (let slot = 0; slot < strip.width; slot++) {
      image.data.set(column ? palette.heat(kind, column[slot]) : palette.state.mask, 4 * slot);
    }
    context.putImageData(image, 0, 0);
  }

  rove(target) {
    const cell = target.closest(".slot");
    if (!cell) return;
    this.cells[this.cursor].setAttribute("tabindex", "-1");
    this.cursor = cell.slot_;
    cell.setAttribute("tabindex", "0");
  }

  roam(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
    const ends = { Home: 0, End: this.replay.frames[this.position].length - 1 }[event.key];
    if (step === undefined && ends === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const next = ends ?? this.cursor + step;
    if (next >= 0 && next < this.replay.frames[this.position].length) this.cells[next].focus();
  }
}
