// The card beside a slot: what is there, since when, and what else the model would have written.

class Card {
  constructor(element) {
    Object.assign(this, { element, pane: null, slot: 0 });
  }

  open(pane, slot) {
    if (slot >= pane.replay.frames[pane.position].length) return this.close();
    if (this.pane && this.pane !== pane) this.close();
    Object.assign(this, { pane, slot });
    const cell = pane.cells[slot];
    this.element.replaceChildren(...this.content());
    this.element.hidden = false;
    cell.setAttribute("aria-describedby", this.element.id);
    this.place(cell.getBoundingClientRect());
  }

  close() {
    if (this.pane) this.pane.cells[this.slot].removeAttribute("aria-describedby");
    this.element.hidden = true;
    this.pane = null;
  }

  refresh() {
    if (this.pane) this.open(this.pane, this.slot);
  }

  place(box) {
    const card = this.element.getBoundingClientRect(), edge = 8;
    const left = Math.min(Math.max(edge, box.left + box.width / 2 - card.width / 2), innerWidth - card.width - edge);
    const below = box.bottom + edge + card.height < innerHeight - 70;
    this.element.style.left = `${left}px`;
    this.element.style.top = `${below ? box.bottom + edge : Math.max(edge, box.top - card.height - edge)}px`;
  }

  content() {
    const { replay, position } = this.pane, asked = replay.asked(position, this.slot);
    const id = replay.frames[position].ids[this.slot], masked = id === replay.roles.mask;
    const name = masked ? "masked" : replay.pieces[id] === undefined ? replay.label(id) : exact(replay.pieces[id]);
    const rows = [el("p", { class: "what" }, el("span", {}, `slot ${this.slot}`), el("b", {}, name)),
      el("p", { class: "since" }, this.since(asked, masked))];
    if (!asked) return rows;
    const told = { conf: "top", eos: "P(EOS)", void: "P(VOID)" };
    const facts = Object.entries(told).filter(([kind]) => replay.column(kind, asked[0]))
      .map(([kind, word]) => el("span", {}, `${word} `, el("b", {}, figure(replay.column(kind, asked[0])[asked[1]]))));
    if (facts.length) rows.push(el("p", { class: "facts" }, ...facts));
    const five = replay.candidates(asked);
    if (five.length) rows.push(el("ol", {}, ...five.map((one) => this.bar(one, !masked && one.id === id))));
    return rows;
  }

  since(asked, masked) {
    const { replay } = this.pane;
    if (replay.state(this.pane.position, this.slot) === "prompt") return "fixed text of the template";
    if (!asked) return masked ? "nothing asked yet" : "placed by the length rule";
    const when = place(replay, asked[0] + 1);
    if (masked) return `as seen in ${when}`;
    return `committed in ${when}, score ${figure(replay.commit(asked)?.[2])}`;
  }

  bar({ id, p }, chosen) {
    const { replay } = this.pane, fill = el("i");
    fill.style.width = `${Math.max(0, Math.min(100, 100 * p))}%`;
    const word = replay.pads.has(id) || id === replay.roles.eos || id === replay.roles.mask;
    const name = word ? replay.label(id) : shown(replay.label(id));
    return el("li", { class: chosen ? "chosen" : null }, fill, el("span", {}, name), el("b", {}, figure(p)));
  }
}
