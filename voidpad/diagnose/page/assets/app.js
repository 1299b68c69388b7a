// The controls: one clock for all panes. Time 0 is where decoding starts; probes lie before it.

const SPEEDS = [1, 2, 5, 10, 20, 40, 80];
const THEMES = ["auto", "light", "dark"];
const byId = (id) => document.getElementById(id);
const replays = JSON.parse(byId("data").textContent).traces.map((raw) => new Replay(raw));
const state = { time: 0, mode: "state", playing: false, guessing: false, theme: 0, panes: [], span: null, palette: null };
const card = new Card(byId("card"));

// Colours live in the style sheet; the bitmaps ask for them, so a theme changes both.
function palette() {
  const sample = el("i");
  document.body.append(sample);
  const read = (name) => {
    sample.style.color = `var(--${name})`;
    return [...getComputedStyle(sample).color.match(/[\d.]+/g).slice(0, 3).map(Number), 255];
  };
  const colours = { mask: read("map-mask"), word: read("map-word"), eos: read("map-eos"), void: read("map-void"),
    tail: read("map-tail"), cut: read("map-cut"), spare: read("map-cut"), prompt: read("prompt"), forced: read("map-forced") };
  const ramps = Object.fromEntries(["conf", "eos", "void"].map((kind) => [kind, ramp(colours.mask, read(`heat-${kind}`))]));
  sample.remove();
  const heat = (kind, p) => ramps[kind][Math.max(0, Math.min(100, Math.round(p * 100))) || 0];
  return { state: colours, heat, bright: (kind, p) => luminance(heat(kind, p)) > 0.179 };
}

// Black and white text stand out alike from a ground of luminance 0.179.
function luminance(rgb) {
  const linear = rgb.slice(0, 3).map((v) => (v <= 10.3 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

function ramp(low, high) {
  return Array.from({ length: 101 }, (_, i) => low.map((from, c) => Math.round(from + ((high[c] - from) * i) / 100)));
}

function span(chosen) {
  const most = (measure) => Math.max(1, ...chosen.map(measure));
  const from = -Math.max(0, ...chosen.map((replay) => replay.probes));
  return { from, to: most((replay) => replay.decodes), longest: most((replay) => replay.longest), alone: chosen.length < 2 };
}

function assemble() {
  const left = replays[Number(byId("left").value)], right = replays[Number(byId("right").value)];
  const chosen = right === undefined ? [left] : [left, right];
  card.close();
  state.span = span(chosen);
  state.panes = chosen.map((replay) => new Pane(replay, state.span, seek));
  byId("panes").replaceChildren(...state.panes.map((pane) => pane.element));
  byId("panes").classList.toggle("two", chosen.length > 1);
  byId("prompts").replaceChildren(...prompts(chosen));
  document.title = `${chosen.map(title).join(" / ")} - voidpad ${document.body.dataset.page}`;
  Object.assign(byId("time"), { min: state.span.from, max: state.span.to });
  offer(chosen);
  for (const pane of state.panes) { pane.layout(); pane.charts.layout(); }
  state.time = state.span.from;
  const total = state.span.to - state.span.from;
  byId("speed").value = SPEEDS.find((speed) => total / speed <= 15) ?? SPEEDS.at(-1);
  recolour();
  seek(state.time);
}

function prompts(chosen) {
  const same = chosen.length > 1 && JSON.stringify(chosen[0].header.prompt) === JSON.stringify(chosen[1].header.prompt);
  return (same ? chosen.slice(0, 1) : chosen).map((replay, i) => {
    const { ids, text } = replay.header.prompt, open = ids.length <= 160 && innerWidth > 620; // on a phone the canvas comes first
    const name = same || chosen.length === 1 ? "Prompt" : i ? "Right prompt" : "Left prompt";
    const tokens = ids.every((id) => id in replay.pieces) && ids.length
      ? ids.map((id) => el("span", { class: "token" }, shown(replay.pieces[id]))) : [text];
    return el("details", { class: "ask", open: open ? "" : null },
      el("summary", {}, name, " ", el("span", {}, count(ids.length, "token"))), el("p", {}, ...tokens));
  });
}

// Colours no shown trace can give are switched off, with the reason.
function offer(chosen) {
  const missing = { conf: "no confidences recorded", eos: "no probabilities recorded (--set trace_detail=probs)",
    void: "no VOID probabilities recorded" };
  for (const input of byId("modes").querySelectorAll("input")) {
    const usable = input.value === "state" || chosen.some((replay) => replay.has(input.value));
    input.disabled = !usable;
    input.parentElement.title = usable ? MODES[input.value] : `Not here: ${missing[input.value]}`;
    if (!usable && state.mode === input.value) state.mode = "state";
    input.checked = input.value === state.mode;
  }
  byId("guess").hidden = !chosen.some((replay) => replay.passes.some((pass) => pass.top5_ids));
  state.guessing &&= !byId("guess").hidden;
}

function seek(time) {
  if (!state.panes.length) return;
  state.time = Math.min(state.span.to, Math.max(state.span.from, time));
  for (const pane of state.panes) pane.show(position(pane.replay), state);
  const range = byId("time"), lead = state.panes.reduce((a, b) => (b.replay.decodes > a.replay.decodes ? b : a));
  range.value = state.time;
  range.setAttribute("aria-valuetext", state.panes.map((pane) => pane.summary).join(". "));
  range.style.setProperty("--done", `${(100 * (state.time - state.span.from)) / (state.span.to - state.span.from || 1)}%`);
  byId("clock").textContent = clock(lead.replay);
  card.refresh();
}

function clock(replay) {
  if (state.time < 0 || (state.time === 0 && replay.probes)) return place(replay, position(replay));
  return state.time === 0 ? "start" : `pass ${state.time} of ${state.span.to}`;
}

function position(replay) {
  return Math.min(replay.frames.length - 1, Math.max(0, state.time + replay.probes));
}

// Said aloud when somebody steps, not while it plays.
function announce() {
  byId("status").textContent = state.panes.map((pane) =>
    (state.panes.length > 1 ? title(pane.replay) + ", " : "") + pane.summary).join(". ");
}

function step(by) {
  hold();
  seek(state.time + by);
  announce();
}

function play() {
  if (!state.panes.length) return;
  if (state.time >= state.span.to) seek(state.span.from);
  state.playing = true;
  state.due = performance.now();
  mark();
  requestAnimationFrame(tick);
}

function hold() {
  if (!state.playing) return;
  state.playing = false;
  mark();
  announce();
}

function mark() {
  byId("play").classList.toggle("on", state.playing);
  byId("play").setAttribute("aria-label", state.playing ? "Pause" : "Play");
}

function tick(now) {
  if (!state.playing) return;
  const pace = 1000 / Number(byId("speed").value), passed = Math.floor((now - state.due) / pace);
  if (passed > 0) {
    state.due += passed * pace;
    seek(state.time + passed);
  }
  if (state.time >= state.span.to) hold();
  else requestAnimationFrame(tick);
}

function recolour() {
  state.palette = palette();
  document.documentElement.dataset.mode = state.mode;
  for (const pane of state.panes) { pane.show(position(pane.replay), state); pane.repaint(); }
  legend();
}

function legend() {
  if (state.mode !== "state") {
    const scale = el("span", { class: "scale" }, "0", el("i"), "1");
    byId("legend").replaceChildren(el("span", {}, MODES[state.mode]), scale, el("span", { class: "aside" },
      "masked slots: this pass; committed slots: the pass that wrote them"));
    return;
  }
  const any = (test) => state.panes.some((pane) => test(pane.replay));
  const kinds = [["prompt", "prompt"], ["mask", "masked"], ["word", "committed"], ["word fresh", "just committed"],
    ["eos first", "EOS"]];
  if (any((r) => r.passes.some((pass) => pass.commits.some((commit) => r.pads.has(commit[1]))))) kinds.push(["void", "VOID or padding"]);
  if (any((r) => r.passes.some((pass) => pass.forced?.length))) kinds.push(["forced", "follows from the constraint"]);
  if (any((r) => r.frames.some((frame) => frame.cut))) kinds.push(["cut", "cut off"]);
  if (any((r) => r.ends("tail"))) kinds.push(["tail", "after the EOS"]);
  if (any((r) => r.ends("spare"))) kinds.push(["spare", "never needed"]);
  byId("legend").replaceChildren(...kinds.map(([kind, name]) => el("span", { class: "key" }, el("i", { class: `slot ${kind}` }), name)));
}

function colour(mode) {
  const input = byId("modes").querySelector(`input[value=${mode}]`);
  if (input.disabled) return;
  input.checked = true;
  state.mode = mode;
  recolour();
  card.refresh();
}

// Masked slots show what the model would write there, if the trace kept it.
function guess() {
  if (byId("guess").hidden) return;
  state.guessing = !state.guessing;
  byId("guess").setAttribute("aria-pressed", state.guessing);
  seek(state.time);
}

function theme() {
  state.theme = (state.theme + 1) % THEMES.length;
  const name = THEMES[state.theme];
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = `Theme: ${name}`;
  recolour();
}

const KEYS = {
  " ": () => (state.playing ? hold() : play()),
  ArrowRight: () => step(1), ArrowLeft: () => step(-1), ".": () => step(1), ",": () => step(-1),
  PageDown: () => step(10), PageUp: () => step(-10),
  Home: () => step(-Infinity), End: () => step(Infinity),
  1: () => colour("state"), 2: () => colour("conf"), 3: () => colour("eos"), 4: () => colour("void"),
  g: guess, t: theme, Escape: () => { card.close(); if (document.activeElement.closest(".slot")) document.activeElement.blur(); },
};

// A control that has its own use for a key keeps it.
function taken(target, key) {
  if (target.matches("select, textarea, input[type=text], input[type=number], input[type=password]")) return true;
  if (target.matches("input[type=checkbox]")) return key === " ";
  if (target.matches("button, summary")) return key === " ";
  if (target.matches("input[type=radio]")) return key.startsWith("Arrow") || key === " ";
  return false;
}

function pressed(event) {
  const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey || taken(event.target, event.key)) return;
  event.preventDefault();
  act();
}

function listen() {
  for (const [id, act] of [["first", KEYS.Home], ["back", KEYS.ArrowLeft], ["play", KEYS[" "]], ["forth", KEYS.ArrowRight],
    ["last", KEYS.End], ["theme", theme], ["guess", guess]]) byId(id).addEventListener("click", act);
  byId("time").addEventListener("input", (event) => { hold(); seek(Number(event.target.value)); });
  byId("modes").addEventListener("change", (event) => colour(event.target.value));
  for (const id of ["left", "right"]) byId(id).addEventListener("change", assemble);
  document.addEventListener("keydown", pressed);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  for (const kind of ["pointerover", "focusin"]) byId("panes").addEventListener(kind, (event) => point(event.target));
  for (const kind of ["pointerleave", "focusout"]) byId("panes").addEventListener(kind, () => card.close());
  new ResizeObserver(() => state.panes.forEach((pane) => { pane.layout(); pane.charts.layout(); card.refresh(); }))
    .observe(byId("panes"));
}

function point(target) {
  const cell = target.closest(".slot"), pane = cell && state.panes.find((one) => one.grid.contains(cell));
  if (pane) card.open(pane, cell.slot_);
  else if (!document.activeElement.closest(".slot")) card.close();
}

function menus() {
  const names = replays.map((replay, i) => el("option", { value: i }, `${replay.name}: ${title(replay)}`));
  byId("left").append(...names.map((option) => option.cloneNode(true)));
  byId("right").append(el("option", { value: -1 }, "none"), ...names);
  byId("right").value = replays.length > 1 ? 1 : -1;
  byId("pick").hidden = replays.length < 2;
  byId("speed").append(...SPEEDS.map((speed) => el("option", { value: speed }, `${speed}/s`)));
}

menus();
listen();
if (replays.length) assemble();
document.documentElement.dataset.ready = "yes";
