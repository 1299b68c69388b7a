// Words and elements. Everything from a trace reaches the page through text nodes only.

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const STOPS = {
  eos: "Stopped at its EOS",
  full: "Ran until the canvas was full",
  limit: "Stopped at a limit",
  stalled: "Stalled: a pass changed nothing",
  cancelled: "Cancelled",
  stop: "Ended: the answer was complete",
  rule: "Ended by its stop rule",
  deadline: "Stopped at the time limit",
  running: "Decoding",
};

const STATES = {
  prompt: "given",
  mask: "masked",
  word: "committed",
  forced: "follows from the constraint",
  eos: "end of answer",
  void: "padding",
  tail: "after the end",
  spare: "never needed",
  cut: "cut off",
};

const MODES = {
  state: "State",
  conf: "Confidence: the largest probability at the slot",
  eos: "P(EOS): the probability that the answer ends at this slot",
  void: "P(VOID): the probability that this slot is padding",
};

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

// Line breaks and spaces have a shape of their own; leading spaces are left out so that the canvas stays calm.
function shown(text) {
  if (text === "") return "∅";
  if (text.trim() !== "") return text.trim().replace(/\s+/g, " ");
  return text.includes("\n") ? "↵" : text.includes("\t") ? "⇥" : "␣";
}

function exact(text) {
  return JSON.stringify(text);
}

function figure(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const small = Math.abs(value) < 0.0005;
  return small ? (value === 0 ? "0" : "≈ 0") : value.toFixed(3).replace("-", "−");
}

function title(replay) {
  return `${replay.header.model}, ${replay.header.plan_name}`;
}

function verdict(replay) {
  const r = replay.result, total = r.passes_decode + r.passes_probe - r.passes_shared;
  const parts = [`${r.passes_decode} decode`, `${r.passes_probe} probe`, `${r.passes_shared} shared`];
  const answer = r.tokens.filter((id) => id !== replay.roles.eos).length;
  return {
    stop: STOPS[r.stop_reason] ?? `Stopped: ${r.stop_reason}`,
    facts: `${count(total, "pass").replace("passs", "passes")} (${parts.join(", ")}) · canvas ${r.ids.length} · ` +
      `answer ${count(answer, "token")}`,
  };
}

// Where a position is, in words: the start, a probe, or a decoding pass.
function place(replay, position) {
  if (position === 0) return "start";
  if (position <= replay.probes) return `probe ${position} of ${replay.probes}`;
  return `pass ${position - replay.probes} of ${replay.decodes}`;
}

function edits(pass) {
  if (!pass) return "";
  return pass.edits.map((edit) => {
    if (edit.kind === "cut") return `then ${count(edit.count, "slot")} cut`;
    return `then ${count(edit.count, "slot")} ${edit.kind === "append" ? "added" : `inserted at ${edit.at}`}`;
  }).join(", ");
}
