// The server's page: a chat whose answers are drawn on the replay page's canvas while they are decoded.

const about = JSON.parse(byId("data").textContent).server;
const USUAL = ["canvas", "limit", "block", "temperature", "threshold", "entropy_bound"]; // plan fields that are not folded away
const MARKER = /\[\[gap(?::\d{1,4}(?:-\d{1,4})?)?\]\]/; // a message that holds one is a text to fill, not a turn of the chat
const NARROW = matchMedia("(max-width: 1000px)"); // there the canvas is above the chat
const TOUCH = matchMedia("(pointer: coarse)"); // no Shift+Enter there: Enter starts a new line, and the button sends
const REDRAW = 120; // milliseconds between two drawings of a canvas that is still changing
const chat = { turns: [], runs: [], stop: null, drawn: 0, pending: false, plots: false };

// One request and the trace that its canvas events make.
class LiveRun {
  constructor(setting, bubble) {
    Object.assign(this, { setting, bubble, header: null, passes: [], end: null, pieces: {}, text: "", report: null });
  }

  take(extension) {
    const { record, pieces } = extension;
    Object.assign(this.pieces, pieces ?? {});
    if (record.type === "header") this.header = record;
    else if (record.type === "pass") this.passes.push(record);
    else this.end = record;
  }

  // The trace so far, as a finished one: the replay shows what there is.
  raw() {
    if (!this.header) return null;
    const probes = this.passes.filter((pass) => pass.phase !== "decode").length;
    const slots = new Array(this.passes.at(-1)?.length ?? 0).fill(-1);
    const so_far = { text: this.text, tokens: [], ids: slots, passes_decode: this.passes.length - probes, passes_probe: probes,
      passes_shared: 0, canvas: slots.length, stop_reason: "running" };
    const end = this.end ?? { result: so_far, pieces: this.pieces };
    return { name: this.setting.plan, header: this.header, passes: this.passes, end };
  }

  lines() {
    const row = (record) => JSON.stringify({ ...record, row: chat.runs.indexOf(this) });
    return [this.header, ...this.passes, this.end].map(row).join("\n") + "\n";
  }
}

function draw(done) {
  const raws = chat.runs.map((run) => run.raw()).filter((raw) => raw && raw.passes.length);
  if (!raws.length) return;
  const mode = state.mode, at = chat.drawn;
  replays.splice(0, replays.length, ...raws.map((raw) => new Replay(raw)));
  byId("left").replaceChildren();
  byId("right").replaceChildren();
  menus();
  byId("pick").hidden = true;
  assemble();
  if (NARROW.matches) state.panes.forEach(foldPlots);
  if (mode !== state.mode) colour(mode);
  chat.drawn = at + 1;
  seek(Infinity);
  if (!done) return;
  announce();
  if (NARROW.matches) state.panes[0].text.scrollIntoView({ block: "nearest" });
}

function foldPlots(pane) {
  const fold = el("details", { class: "plots", open: chat.plots ? "" : null }, el("summary", {}, "Plots"));
  pane.charts.element.replaceWith(fold);
  fold.append(pane.charts.element);
  fold.addEventListener("toggle", () => { chat.plots = fold.open; });
}

function drawSoon() {
  if (chat.pending) return;
  chat.pending = true;
  setTimeout(() => { chat.pending = false; draw(false); }, REDRAW);
}

function bubble(role, name) {
  const made = el("li", { class: role }, ...(name ? [el("b", {}, name)] : []), el("span"));
  byId("talk").append(made);
  newest();
  return made;
}

function newest() {
  byId("talk").scrollTop = byId("talk").scrollHeight;
}

function headers() {
  const key = byId("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

// What to send for a text with gaps. The server's usual plan is left unnamed: it knows how that plan fills gaps.
function template(setting) {
  const plan = setting.plan === about.plan ? {} : { plan: setting.plan };
  return {
    model: about.model, prompt: "", stream: true, seed: Number(byId("seed").value || 0),
    voidpad: { ...plan, template: setting.template, gap_length: byId("gaps").value, canvas_events: true, ...setting.fields },
  };
}

function body(setting) {
  const most = byId("most").value.trim(), schema = byId("schema").value.trim();
  const format = schema && { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
  return {
    model: about.model, messages: chat.turns, stream: true, stream_options: { include_usage: true },
    seed: Number(byId("seed").value || 0), ...(most ? { max_tokens: Number(most) } : {}), ...(format ? { response_format: format } : {}),
    voidpad: { plan: setting.plan, canvas_events: true, ...setting.fields },
  };
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    let cut;
    while ((cut = buffer.indexOf("\n\n")) >= 0) {
      const block = buffer.slice(0, cut);
      buffer = buffer.slice(cut + 2);
      if (block.startsWith("data: ")) yield block.slice(6);
    }
  }
}

async function decode(run, signal) {
  const [path, asked] = run.setting.template ? ["v1/completions", template(run.setting)] : ["v1/chat/completions", body(run.setting)];
  const response = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(asked), signal });
  if (!response.ok) {
    const problem = await response.json().catch(() => null);
    if (response.status === 401) {
      byId("keyline").hidden = false;
      throw new Error("This server answers with a valid API key only. Enter yours in the field \u201cAPI key\u201d and send again.");
    }
    throw new Error(problem?.error?.message ?? `The server answered ${response.status}.`);
  }
  byId("keyline").hidden = true;  // the key is good; a refusal brings the field back
  let finished = false;
  for await (const data of events(response)) {
    if (data === "[DONE]") { finished = true; continue; }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.voidpad?.record) { run.take(chunk.voidpad); drawSoon(); }
    const choice = chunk.choices[0], fresh = choice?.delta?.content ?? choice?.text;
    if (fresh) {
      run.text += fresh;
      run.bubble.lastChild.textContent = run.text;
      newest();
    }
    if (choice?.finish_reason) run.report = { ...chunk.voidpad, finish: choice.finish_reason };
  }
  if (!finished) throw new Error("The connection ended before the answer did.");
}

function closeBubble(run) {
  run.bubble.classList.remove("busy");
  if (!run.report) return;
  const { passes_decode, passes_probe, passes_shared, canvas, decode_seconds, finish } = run.report;
  const passes = passes_decode + passes_probe - passes_shared;
  if (!run.text) run.bubble.lastChild.textContent = "(an empty answer)";
  else if (run.report.gaps) {
    const written = run.report.gaps.map((text) => el("mark", {}, text));
    run.bubble.lastChild.replaceChildren(...run.setting.template.split(MARKER).flatMap((text, k) => (k ? [written[k - 1], text] : [text])));
  }
  run.bubble.append(el("small", {}, `${passes} passes · canvas ${canvas} · ${decode_seconds.toFixed(2)} s · ${finish}`));
  newest();
}

async function ask(event) {
  event.preventDefault();
  const text = byId("prompt").value;
  if (!text.trim() || chat.stop) return;
  const fills = MARKER.test(text), settings = [setting("a"), ...(byId("compare").checked ? [setting("b")] : [])];
  if (fills) settings.forEach((one) => { one.template = text; });
  byId("trouble").hidden = true;
  byId("examples").hidden = true;
  const before = chat.turns.length;
  if (!fills) chat.turns.push({ role: "user", content: text });
  const said = bubble("user");
  said.lastChild.textContent = text;
  chat.stop = new AbortController();
  chat.runs = settings.map((one) => new LiveRun(one, bubble("model busy", settings.length > 1 ? one.plan : about.model)));
  working(true);
  if (NARROW.matches) {
    byId("prompt").blur();
    scrollTo(0, 0);
  }
  try {
    await Promise.all(chat.runs.map((run) => decode(run, chat.stop.signal)));
    if (!fills) chat.turns.push({ role: "assistant", content: chat.runs[0].text });
    byId("prompt").value = "";
  } catch (error) {
    chat.stop.abort();
    chat.turns.length = before;
    if (error.name !== "AbortError") {
      byId("trouble").textContent = error.message;
      byId("trouble").hidden = false;
      if (chat.runs.every((run) => !run.text)) {  // the message is still in the field: nothing of the failed turn stays
        chat.runs.forEach((run) => run.bubble.remove());
        said.remove();
        byId("examples").hidden = byId("talk").children.length > 0;
      }
    }
  }
  chat.runs.forEach(closeBubble);
  chat.stop = null;
  working(false);
  draw(true);
  if (!NARROW.matches) byId("prompt").focus();
  document.documentElement.dataset.answered = Number(document.documentElement.dataset.answered ?? 0) + 1;
}

function working(on) {
  byId("go").disabled = on;
  byId("halt").hidden = !on;
  byId("save").hidden = on || !chat.runs.length || !chat.runs.every((run) => run.end);
}

function save() {
  const text = chat.runs.map((run) => run.lines()).join("");
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "application/jsonl" })), download: "trace.jsonl" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function restart() {
  chat.stop?.abort();
  Object.assign(chat, { turns: [], runs: [] });
  byId("talk").replaceChildren();
  byId("trouble").hidden = byId("save").hidden = true;
  byId("examples").hidden = false;
  byId("keyline").hidden = !about.key;
  byId("prompt").focus();
}

// The form of a plan, made from the schema that the command line's options come from.
function planForm(which, chosen) {
  const box = byId(`plan-${which}`), choose = el("select", { "aria-label": "Preset" });
  choose.append(...Object.keys(about.plans).map((name) => el("option", { value: name }, name)));
  choose.value = chosen;
  const usual = el("div", { class: "fields" }), others = el("div", { class: "fields" });
  const more = el("details", {}, el("summary", {}, "More fields"), others);
  const fill = () => {
    const fields = Object.entries(about.plans[choose.value]).map(([name, schema]) => ({ ...schema, name }));
    usual.replaceChildren(...fields.filter((one) => USUAL.includes(one.name)).map(planField));
    others.replaceChildren(...fields.filter((one) => !USUAL.includes(one.name)).map(planField));
  };
  choose.addEventListener("change", fill);
  box.append(choose, usual, more);
  fill();
}

function planField(field) {
  const named = { "data-field": field.name, title: field.description };
  let input;
  if (field.type === "boolean") {
    input = el("select", named, el("option", { value: "" }, `default (${field.default})`), el("option", { value: "true" }, "true"), el("option", { value: "false" }, "false"));
  } else if (field.enum) {
    input = el("select", named, el("option", { value: "" }, `default (${field.default})`), ...field.enum.map((one) => el("option", { value: one }, one)));
  } else if (field.type === "integer" || field.type === "number") {
    input = el("input", { ...named, type: "number", step: field.type === "integer" ? 1 : "any", min: field.minimum ?? field.exclusiveMinimum, max: field.maximum, placeholder: field.default });
  } else {
    input = el("input", { ...named, type: "text", placeholder: field.default });
  }
  input.dataset.type = field.type;
  return el("label", {}, field.name.replaceAll("_", " "), " ", input);
}

function setting(which) {
  const box = byId(`plan-${which}`), fields = {};
  for (const input of box.querySelectorAll("[data-field]")) {
    const value = input.value.trim();
    if (value === "") continue;
    const kind = input.dataset.type;
    fields[input.dataset.field] = kind === "boolean" ? value === "true" : kind === "integer" || kind === "number" ? Number(value) : value;
  }
  return { plan: box.querySelector("select").value, fields };
}

planForm("a", about.plan);
planForm("b", about.plan === "original" ? Object.keys(about.plans)[0] : "original");
byId("ask").addEventListener("submit", ask);
if (NARROW.matches) byId("prompt").placeholder = "A message, or a text with [[gap]]s";
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || TOUCH.matches) return;
  event.preventDefault();
  byId("ask").requestSubmit();
});
byId("examples").append(...about.examples.map((text) => {
  const button = el("button", { type: "button", title: text }, (MARKER.test(text) ? "Fill the gap: " : "") + text.replaceAll("\n", " "));
  button.addEventListener("click", () => { byId("prompt").value = text; byId("ask").requestSubmit(); });
  return button;
}));
byId("halt").addEventListener("click", () => chat.stop?.abort());
byId("fresh").addEventListener("click", restart);
byId("save").addEventListener("click", save);
byId("compare").addEventListener("change", (event) => { byId("plan-b").hidden = !event.target.checked; });
byId("key").value = sessionStorage.getItem("voidpad-key") ?? "";
byId("key").addEventListener("change", (event) => sessionStorage.setItem("voidpad-key", event.target.value.trim()));
byId("keyline").hidden = !about.key;
recolour();
byId("prompt").focus();
