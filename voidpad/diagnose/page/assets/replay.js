"use strict";
// A trace as something one can ask: what was on the canvas at this position, and what did the model think there?

const HALF = (() => {
  // float16 as a table: half-precision arrays are not in every browser yet.
  const table = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 31) table[bits] = fraction ? NaN : sign * Infinity;
    else table[bits] = sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
  }
  return table;
})();

function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

function halves(text) {
  const raw = bytes(text), out = new Float32Array(raw.length >> 1);
  for (let i = 0; i < out.length; i++) out[i] = HALF[raw[2 * i] | (raw[2 * i + 1] << 8)];
  return out;
}

function ints(text) {
  const view = new DataView(bytes(text).buffer), out = new Int32Array(view.byteLength >> 2);
  for (let i = 0; i < out.length; i++) out[i] = view.getInt32(4 * i, true);
  return out;
}

const UNWRITTEN = -1, GIVEN = -2;  // instead of the pass that wrote a slot; GIVEN is the fixed text of a template
const FIELDS = { conf: "top", eos: "p_eos", void: "p_void" };

// A growing or shrinking typed array: the slots an edit adds hold `value`.
function edited(array, edit, value) {
  const head = array.subarray(0, edit.at);
  if (edit.kind === "cut") return joined(head, array.subarray(edit.at + edit.count));
  return joined(head, new Int32Array(edit.count).fill(value), array.subarray(edit.at));
}

function joined(...parts) {
  const out = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) { out.set(part, at); at += part.length; }
  return out;
}

// Position 0 is the canvas before the first pass: blank, or a template with gaps; position k shows pass k-1 with its commits, before the edits that follow it,
// so that what the pass measured lines up with the slots on show.
class Replay {
  constructor(raw) {
    Object.assign(this, { name: raw.name, header: raw.header, passes: raw.passes, result: raw.end.result });
    this.pieces = raw.end.pieces;
    this.roles = raw.header.roles;
    this.pads = new Set([...(this.roles.void === null ? [] : [this.roles.void]), ...this.roles.rainbow]);
    const decoding = this.passes.findIndex((pass) => pass.phase !== "probe");
    this.probes = decoding < 0 ? this.passes.length : decoding;
    this.decodes = this.passes.length - this.probes;
    this.longest = this.passes.reduce((most, pass) => Math.max(most, pass.length), 0);
    this.columns = { conf: [], eos: [], void: [] };
    this.frames = this.unroll();
  }

  unroll() {
    const mask = this.roles.mask, template = this.header.template ?? [];
    const blank = new Int32Array(this.passes.length ? this.passes[0].length : 0).fill(mask);
    let ids = template.length ? Int32Array.from(template) : blank;
    let born = ids.map((id) => (id === mask ? UNWRITTEN : GIVEN)), seat = new Int32Array(ids.length);
    const frames = [this.frame(null, ids, born, seat)];
    this.passes.forEach((pass, k) => {
      [ids, born, seat] = [ids.slice(), born.slice(), seat.slice()];
      for (const [slot, id] of pass.commits) { ids[slot] = id; born[slot] = k; seat[slot] = slot; }
      const frame = this.frame(pass, ids, born, seat);
      frames.push(frame);
      if (!pass.edits.length) return;
      let kept = Int32Array.from(ids, (_, slot) => slot);
      for (const edit of pass.edits) {
        ids = edited(ids, edit, edit.id);
        born = edited(born, edit, UNWRITTEN);
        seat = edited(seat, edit, -1);
        kept = edited(kept, edit, -1);
      }
      const stays = new Set(kept), gone = Array.from(frame.ids, (_, slot) => slot).filter((slot) => !stays.has(slot));
      frame.cut = gone.length ? new Set(gone) : null;
    });
    return frames;
  }

  frame(pass, ids, born, seat) {
    const eos = ids.indexOf(this.roles.eos);
    return { pass, ids, born, seat, cut: null, length: ids.length, eos: eos < 0 ? ids.length : eos };
  }

  has(kind) {
    if (kind === "conf") return this.passes.some((pass) => pass.top || pass.commits.some(plausible));
    return this.passes.some((pass) => pass[FIELDS[kind]]);
  }

  // What pass k measured at every slot, or null.
  column(kind, k) {
    const cached = this.columns[kind];
    if (cached[k] === undefined) {
      const packed = this.passes[k][FIELDS[kind]];
      cached[k] = packed ? halves(packed) : null;
    }
    return cached[k];
  }

  // The pass and slot where the model was last asked about this slot: now while it is masked, at its commit afterwards.
  asked(position, slot) {
    const frame = this.frames[position];
    if (frame.ids[slot] === this.roles.mask) return position ? [position - 1, slot] : null;
    return frame.born[slot] < 0 ? null : [frame.born[slot], frame.seat[slot]];
  }

  value(kind, position, slot) {
    const asked = this.asked(position, slot);
    if (!asked) return null;
    const column = this.column(kind, asked[0]);
    if (column) return Number.isNaN(column[asked[1]]) ? null : column[asked[1]];
    const commit = kind === "conf" && this.commit(asked);
    return commit && plausible(commit) ? commit[2] : null;
  }

  commit([k, slot]) {
    return this.passes[k].commits.find((commit) => commit[0] === slot);
  }

  // The five likeliest tokens of every slot of a pass, unpacked once while somebody looks at that pass.
  five(k) {
    if (this.open_?.k !== k) {
      const { top5_ids, top5_p } = this.passes[k];
      this.open_ = { k, ids: top5_ids ? ints(top5_ids) : null, p: top5_p ? halves(top5_p) : null };
    }
    return this.open_;
  }

  guess(position, slot) {
    const ids = position ? this.five(position - 1).ids : null;
    return ids && ids[5 * slot] >= 0 ? ids[5 * slot] : null;  // -1: this slot was not recorded
  }

  candidates([k, slot]) {
    const { ids, p } = this.five(k);
    if (!ids || !p) return [];
    return Array.from({ length: 5 }, (_, i) => ({ id: ids[5 * slot + i], p: p[5 * slot + i] }))
      .filter((one) => one.id >= 0);
  }

  state(position, slot) {
    const frame = this.frames[position], id = frame.ids[slot];
    if (frame.cut && frame.cut.has(slot)) return "cut";
    if (frame.born[slot] === GIVEN) return "prompt";
    if (id === this.roles.mask) return position === this.frames.length - 1 && slot > frame.eos ? "spare" : "mask";
    if (id === this.roles.eos) return "eos";
    if (this.pads.has(id)) return "void";
    return slot > frame.eos ? "tail" : this.forced(position, slot) ? "forced" : "word";
  }

  // Whether the text of a slot follows from the constraint: the model alone would have written something else.
  forced(position, slot) {
    const asked = this.asked(position, slot);
    return asked !== null && (this.passes[asked[0]].forced ?? []).includes(asked[1]);
  }

  // Whether the decode leaves a slot in this state.
  ends(state) {
    const last = this.frames.length - 1;
    return this.frames[last].ids.some((_, slot) => this.state(last, slot) === state);
  }

  label(id) {
    if (id === this.roles.mask) return "MASK";
    if (id === this.roles.eos) return "EOS";
    if (id === this.roles.void) return "VOID";
    const colour = this.roles.rainbow.indexOf(id);
    return colour >= 0 ? "R" + colour : this.pieces[id] ?? "#" + id;
  }

  // The first EOS and the masks left after the position's pass, as the trace recorded them.
  counts(position) {
    if (position) return this.frames[position].pass;
    const masks = this.frames[0].ids.reduce((sum, id) => sum + (id === this.roles.mask), 0);
    return { masks, first_eos: null };
  }

  // Some tokenizers keep the space in the token, others put it between tokens.
  get glue() {
    const said = [...this.header.prompt.ids, ...this.result.tokens].map((id) => this.pieces[id] ?? "");
    return said.some((piece) => /^\s/.test(piece)) ? "" : " ";
  }
}

function plausible(commit) {
  return commit[2] !== null && commit[2] >= 0 && commit[2] <= 1;
}
