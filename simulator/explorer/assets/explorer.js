"use strict";
// State -> question -> answer -> pictures. The state is the page's link; nothing is kept elsewhere.
const PINS = {
  tp: [1, 2, 4, 8, 16, 32, 64], pp: [1, 2, 4, 8, 16, 32], vpp: [1, 2, 4, 5, 8, 10],
  cp: [1, 2, 4, 8, 16], ep: [1, 2, 4, 8, 16, 32, 64], micro_batch: [1, 2, 4, 8, 16, 32, 64],
  sharding: ["ddp", "zero1", "zero2", "zero3"], recompute: ["none", "selective", "full"],
};
const NUMBERS = ["tokens", "sequence_length", "global_batch", "deadline_days", "budget_usd", "gpus", "usd_per_gpu_hour"];
const WORDS = ["model", "cluster", "software", "precision", "minimize", "tight", "beside"];
const START = {
  model: "llama-3.1-70b", cluster: "dgx-h100", gpus: 256, tokens: 1e12, sequence_length: 8192,
  global_batch: 1024, precision: "bf16", minimize: "time", tight: "never", pins: {},
};
const spaced = (name) => name.replaceAll("_", " ");
const term = (name) => labels[name] || spaced(name);
const $ = (id) => document.getElementById(id);
let state = { ...START }, shown = null, kept = null, machines = [], colours = {}, labels = {}, near = {}, usable = 1, last = "", turn = 0, timer = 0, searchTimer = 0;

function element(tag, text, attributes = {}) {
  const made = tag === "svg" || SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null && text !== undefined) made.textContent = text;
  return made;
}
const SVG = new Set(["rect", "line", "text", "circle", "title", "g", "path"]);
const put = (place, ...children) => {
  place.replaceChildren(...children);
  place.toggleAttribute("tabindex", false);
  if (place.scrollWidth > place.clientWidth + 1) place.tabIndex = 0; // keys scroll what is too wide
  return place;
};
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const colour = (name) => (colours[name] || colours.ideal || ["#888", "#888"])[dark() ? 1 : 0];

const three = (v) => (Math.abs(v) >= 999.5 ? Math.round(v).toLocaleString("en-US") : v.toPrecision(3));
function seconds(s) {
  if (s >= 1) return `${three(s)} s`;
  return `${three(1000 * s)} ms`;
}
const gib = (bytes) => (bytes / 2 ** 30).toFixed(1);
function money(usd) {
  if (usd === null || usd === undefined) return "no price";
  const [scale, word] = usd >= 1e9 ? [1e9, "B"] : usd >= 1e6 ? [1e6, "M"] : usd >= 1e3 ? [1e3, "k"] : [1, ""];
  return `${three(usd / scale)} ${word} USD`.replace("  ", " ");
}
const length = (d) => d.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const days = (d) => (d === null || d === undefined ? "" : d >= 1 ? `${length(d)} days` : `${three(24 * d)} h`);
const share = (p) => (p > 0.999 ? "over 99.9 %" : p < 0.001 ? "under 0.1 %" : `${(100 * p).toFixed(1)} %`);

function question() {
  const asked = {};
  for (const name of [...WORDS, ...NUMBERS]) if (state[name] !== "" && state[name] !== null && state[name] !== undefined) asked[name] = state[name];
  const pins = Object.fromEntries(Object.entries(state.pins).filter(([, v]) => v !== ""));
  if (Object.keys(pins).length) asked.pins = pins;
  for (const name of ["config", "more"]) if (state[name]) asked[name] = state[name];
  return asked;
}

const page = crypto.randomUUID ? crypto.randomUUID() : String(Math.random()), asking = {};

// A newer question of the same kind takes the place of the one that is still asked.
async function ask(path, more = {}) {
  const kind = path + (more.page || "");
  if (asking[kind]) asking[kind].abort();
  const { signal } = (asking[kind] = new AbortController());
  const query = new URLSearchParams({ q: JSON.stringify(question()), page, ...more });
  const reply = await fetch(`${path}?${query}`, { signal });
  if (reply.status === 503) {
    await new Promise((again) => setTimeout(again, 1000));
    return ask(path, more);
  }
  if (reply.status === 429) throw new Error("too many questions at once: wait a second");
  const found = await reply.json();
  if (!reply.ok) throw new Error((found.problems || ["no answer"]).join("\n"));
  return found;
}

function linked() {
  const held = state.against ? { ...question(), against: state.against } : question();
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(held))}`);
}

function changed() {
  linked();
  const query = new URLSearchParams({ q: JSON.stringify(question()) });
  for (const [id, path] of [["scenario_file", "scenario.toml"], ["launch_file", "launch.sh"], ["report_file", "report.html"]]) $(id).href = `${path}?${query}`;
  clearTimeout(timer); clearTimeout(searchTimer);
  if (asking["api/search"]) asking["api/search"].abort();
  put($("otherwise")); put($("sizes"));
  timer = setTimeout(now, 40);
}

async function now() {
  const own = ++turn;
  if (!last) waiting("Searching all layouts ...");
  try {
    const found = await ask("api/now", { near: JSON.stringify(near), last });
    if (own !== turn) return;
    problems("");
    if (found.searched || (found.layout && found.verdict !== "OOM")) show(found);
    else waiting(last ? "None of the last answer's layouts fits here: searching all ..." : "Searching all layouts ...");
    $("searching").textContent = "searching ...";
    searchTimer = setTimeout(() => search(own), found.searched ? 0 : 250);
  } catch (error) { if (own === turn) { problems(error.message); search(own); } }
}

async function search(own) {
  try {
    const found = await ask("api/search");
    if (own !== turn) return;
    problems("");
    show(found);
    if (found.layout) last = found.key;
    $("searching").textContent = found.tried ? `of ${found.tried.toLocaleString("en")} layouts` : "";
    put($("evidence"), ...(found.evidence || []).map((line) => element("li", line)));
    if (state.against && !kept) {
      kept = await ask("api/search", { q: JSON.stringify(state.against), page: `${page} A` });
      versus();
    }
  } catch (error) {
    if (own !== turn) return;
    problems(error.message);
    waiting("No answer to this question.");
    $("searching").textContent = "";
  }
}

function waiting(words) {
  $("verdict").className = "waiting";
  put($("verdict"), element("p", words, { class: "large" }));
  for (const id of ["time", "memory", "front", "layouts", "evidence", "against"]) put($(id));
}

function problems(text) {
  $("problems").hidden = !text;
  $("problems").textContent = text;
}

function show(found) {
  const place = $("verdict");
  shown = found;
  versus();
  if (!found.layout) {
    place.className = "none";
    put(place, element("p", "Nothing fits", { class: "large" }), element("p", found.reason || "", { class: "reason" }));
    for (const id of ["time", "memory", "front", "layouts"]) put($(id));
    return;
  }
  usable = found.usable_bytes;
  near = Object.fromEntries(Object.entries(found.layout).filter(([, v]) => v !== null));
  place.className = found.verdict;
  const span = `${seconds(found.p10_s)} to ${seconds(found.p90_s)}`;
  const rate = found.price && found.price.usd_per_gpu_hour !== null
    ? `${found.price.usd_per_gpu_hour.toFixed(2)} USD per GPU-hour (${found.price.base === "typed" ? "yours" : [found.price.term, found.price.provider, found.price.date, found.price.grade].filter(Boolean).join(", ")})` : "";
  const mark = found.price && found.price.grade === "assumed" ? "*" : "";
  const plan = found.planned_days && found.planned_days.p50
    ? `plan for ${days(found.planned_days.p50)} (${days(found.planned_days.p10)} to ${days(found.planned_days.p90)})`
      + (found.planned_usd && found.planned_usd.p50 !== null ? `, ${money(found.planned_usd.p50)}${mark}` : "")
      + `: x ${found.planning_factor.value.toFixed(2)}, which ${found.planning_factor.from} published runs took on top` : "";
  const chances = [["deadline", found.deadline_chance], ["budget", found.budget_chance]].filter(([, p]) => p !== null && p !== undefined);
  const goals = chances.map(([goal, p]) => `${share(p)} chance to keep the ${goal}`).join(", ");
  if (chances.some(([, p]) => p < 0.5)) place.classList.add("missed");
  const p90 = found.memory_p90_bytes ? ` (P90 ${gib(found.memory_p90_bytes)})` : "";
  const line = element("p", `: ${gib(found.memory_total_bytes)}${p90} of ${gib(found.usable_bytes)} GiB on the worst rank`);
  line.prepend(element("span", found.verdict, { class: "word" }));
  put(place, element("p", found.sentence, { class: "large" }), ...[plan || (found.days ? "" : "give tokens for days and money"), rate].filter(Boolean).map((words) => element("p", words)),
    ...(goals ? [element("p", goals, { class: "goals" })] : []),
    element("p", found.plain || ""), element("p", `${found.words}${found.searched ? "" : last ? " (of the last answer's layouts; the search runs)" : " (stated defaults; the search runs)"}`),
    element("p", `step ${seconds(found.step_time_s)} (${span}), ${Math.round(found.tokens_per_s_per_gpu).toLocaleString("en")} tokens/s/GPU, MFU ${(100 * found.mfu).toFixed(1)} %, goodput ${(100 * found.goodput).toFixed(1)} %, ${found.software}`),
    line, ...[found.idle, found.margin, ...(found.assumptions || [])].filter(Boolean).map((words) => element("p", words)));
  bar($("time"), found.terms_s, found.step_time_s, seconds, term, "time of the step by term");
  bar($("memory"), found.memory_bytes, Math.max(found.capacity_bytes, found.memory_total_bytes), (v) => `${gib(v)} GiB`, spaced, "memory by kind", found.usable_bytes);
  front(found.pareto || []);
  layouts(found.layouts || []);
}

function bar(place, parts, whole, word, called, title, line = null) {
  const svg = element("svg", null, { viewBox: "0 0 1000 54", role: "img", "aria-label": title });
  const legend = element("ul", null, { class: "legend" });
  let x = 0;
  for (const [name, value] of Object.entries(parts).sort((a, b) => b[1] - a[1])) {
    if (value <= 0) continue;
    const width = (1000 * value) / whole, fill = colour(name);
    const rect = element("rect", null, { x, y: 8, width: Math.max(width - 1, 0.5), height: 34, fill });
    rect.append(element("title", `${called(name)}: ${word(value)}`));
    svg.append(rect);
    x += width;
    if (value < 0.004 * whole) continue;
    const item = element("li", `${called(name)} ${word(value)}`);
    const swatch = element("svg", null, { viewBox: "0 0 10 10", "aria-hidden": "true" });
    swatch.append(element("rect", null, { width: 10, height: 10, rx: 2, fill }));
    item.prepend(swatch);
    legend.append(item);
  }
  if (line !== null) {
    const at = (1000 * line) / whole;
    svg.append(element("line", null, { x1: at, x2: at, y1: 0, y2: 50, stroke: colour("does not fit"), "stroke-width": 3 }));
    legend.append(element("li", `HBM line at ${word(line)}`));
  }
  put(place, svg, legend);
}

function front(rows) {
  const known = rows.some((row) => row.days !== null && row.days !== undefined);
  const x = (row) => (known ? row.days : row.step_time_s), free = (row) => 100 * (1 - row.memory_total_bytes / usable);
  const least = Math.min(...rows.map(x)), drawn = rows.filter((row) => x(row) <= 1.15 * least);
  if (!drawn.length) { put($("front"), element("p", "no layout yet")); return; }
  const svg = element("svg", null, { viewBox: "0 0 480 270", role: "img", "aria-label": "Pareto-optimal layouts: time against free memory" });
  const x0 = least, x1 = Math.max(1.02 * least, ...drawn.map(x)), y1 = Math.max(20, 20 * Math.ceil(Math.max(...drawn.map(free)) / 20));
  const px = (v) => 44 + (420 * (v - x0)) / (x1 - x0), py = (v) => 222 - (200 * v) / y1;
  for (let tick = 0; tick <= y1; tick += y1 / 4) svg.append(element("line", null, { x1: 40, x2: 470, y1: py(tick), y2: py(tick), class: "axis" }), element("text", `${Math.round(tick)}`, { x: 36, y: py(tick) + 4, "text-anchor": "end", class: "quiet" }));
  svg.append(element("text", three(x0), { x: 44, y: 242, class: "quiet" }), element("text", `${three(x1)} ${known ? "days" : "seconds a step"}`, { x: 470, y: 242, "text-anchor": "end", class: "quiet" }), element("text", "free memory of the worst rank, %", { x: 40, y: 12, class: "quiet" }));
  const line = drawn.map((row, i) => `${i ? "L" : "M"}${px(x(row)).toFixed(1)} ${py(free(row)).toFixed(1)}`).join("");
  svg.append(element("path", null, { d: line, fill: "none", stroke: colour("speed"), "stroke-opacity": 0.5 }));
  drawn.forEach((row, i) => {
    const dot = element("circle", null, { cx: px(x(row)), cy: py(free(row)), r: i === 0 ? 7 : 4.5, fill: i === 0 ? colour("fits") : colour("speed") });
    dot.append(element("title", `${row.words}: ${seconds(row.step_time_s)}, ${free(row).toFixed(0)} % free${row.usd ? `, ${money(row.usd)}` : ""}`));
    svg.append(dot);
  });
  put($("front"), svg);
}

function table(head, rows) {
  const made = element("table"), first = element("tr");
  first.append(...head.map((word) => element("th", word, { scope: "col" })));
  made.append(first);
  for (const cells of rows) {
    const line = element("tr");
    line.append(...cells.map((text) => element("td", text)));
    made.append(line);
  }
  return made;
}

function layouts(rows) {
  const cells = (row) => [row.words, seconds(row.step_time_s), row.days === null ? "" : row.days >= 1 ? length(row.days) : row.days.toPrecision(2), row.usd === null ? "" : money(row.usd).replace(" USD", ""), gib(row.memory_total_bytes)];
  const kinds = new Set(), first = ({ layout: l }) => { const key = [l.tp, l.cp, l.pp, l.ep].join(); return !kinds.has(key) && kinds.add(key); };
  put($("layouts"), table(["first of each tp, cp, pp, ep", "step", "days", shown.price && shown.price.grade === "assumed" ? "USD*" : "USD", "GiB"], rows.filter(first).map(cells)));
}

// A is what was kept, B what is asked now: values side by side, and where the step differs.
function versus() {
  $("drop").hidden = !state.against;
  put($("against"));
  if (!state.against || !kept || !shown) return;
  const title = (q) => `${q.model} on ${Number(q.gpus).toLocaleString("en")} x ${q.cluster}`;
  const a = kept, b = shown, heads = ["", `A: ${title(state.against)}`, `B: ${title(question())}`, "B against A"];
  const place = put($("against"), element("h2", "A and B"));
  if (!a.layout || !b.layout) { place.append(element("p", `${a.layout ? "B" : "A"}: nothing fits. ${(a.layout ? b : a).reason || ""}`)); return; }
  const known = (v) => v !== null && v !== undefined;
  const change = (x, y) => (known(x) && known(y) && x && Math.abs(y / x - 1) >= 5e-4 ? `${y >= x ? "+" : ""}${(100 * (y / x - 1)).toFixed(1)} %` : "");
  const row = (name, key, word, ends = []) => {
    const cell = (one) => (known(one[key]) ? word(one[key]) + (ends.length && known(one[ends[1]]) ? ` (${word(one[ends[0]])} to ${word(one[ends[1]])})` : "") : "");
    return [name, cell(a), cell(b), change(a[key], b[key])];
  };
  const percent = (v) => `${(100 * v).toFixed(1)} %`;
  const rows = [
    row("finished in", "days", days, ["days_p10", "days_p90"]), row("cost", "usd", money, ["usd_p10", "usd_p90"]),
    row("step", "step_time_s", seconds, ["p10_s", "p90_s"]), row("tokens/s per GPU", "tokens_per_s_per_gpu", three),
    row("MFU", "mfu", percent), row("goodput", "goodput", percent), row("memory, worst rank, GiB", "memory_total_bytes", gib),
    ["memory", a.verdict, b.verdict, ""], ["layout", a.plain, b.plain, ""],
  ];
  const gap = (name) => (b.terms_s[name] || 0) - (a.terms_s[name] || 0);
  const moved = [...new Set([...Object.keys(a.terms_s), ...Object.keys(b.terms_s)])].filter((name) => Math.abs(gap(name)) > 0.002 * a.step_time_s).sort((x, y) => Math.abs(gap(y)) - Math.abs(gap(x))).slice(0, 3);
  const causes = moved.map((name) => `${term(name)} ${gap(name) > 0 ? "+" : "-"}${seconds(Math.abs(gap(name)))}`).join(", ");
  const than = (x, y, word, less, more) => (known(x) && known(y) ? `${word(Math.abs(y - x))} ${y < x ? less : more}` : "");
  const whole = [than(a.days, b.days, days, "sooner", "later"), than(a.usd, b.usd, money, "cheaper", "dearer")].filter(Boolean).join(", ");
  const inside = known(a.days_p90) && b.days <= a.days_p90 && b.days >= a.days_p10 ? " (days within A's P10 to P90)" : "";
  put(place, element("h2", "A and B"), element("p", `${whole ? `B is ${whole}${inside}. ` : ""}${causes ? `Of a step: ${causes}.` : "The steps are alike."}`), table(heads, rows));
}

// A config.json makes the model; a scenario is read by the server, which sends back its question.
async function takeOwn() {
  const text = $("own_text").value.trim();
  let config = null;
  try { config = JSON.parse(text); } catch { /* no JSON: a scenario */ }
  try {
    if (config !== null) {
      if (typeof config !== "object" || !(config.model_type || config.text_config)) throw new Error("config.json: model_type: required field is missing");
      Object.assign(state, { model: "own", config });
    } else {
      const found = await ask("api/scenario", { q: text });
      state = { ...START, tokens: null, against: state.against, ...found, pins: found.pins || {} };
    }
    problems(""); fill(); changed();
  } catch (error) { problems(error.message); }
}

// The server draws this picture as those of its pages; a parser makes nodes of it and runs nothing.
async function sizes() {
  const own = turn, place = $("sizes");
  put(place, element("p", "Searching other sizes and the cluster beside ..."));
  try {
    const found = await ask("api/sizes");
    if (own !== turn) return;
    put(place, ...found.said.map((words) => element("p", words)));
    if (!found.picture) return;
    const drawn = new DOMParser().parseFromString(found.picture, "text/html").body.children, list = element("ul");
    list.append(...found.options.map((words) => element("li", words)));
    place.append(...drawn, list);
  } catch (error) { if (own === turn) put(place, element("p", error.message)); }
}

async function otherwise() {
  const own = turn, place = $("otherwise");
  put(place, element("p", "Searching other trainings ..."));
  try {
    const found = await ask("api/otherwise");
    if (own !== turn) return;
    const cells = (one) => {
      if (one.layout === null) return [one.change, "no layout fits", "", "", ""];
      const change = one.step_time_s / found.step_time_s - 1;
      return [one.change, seconds(one.step_time_s), `${change > 0 ? "+" : ""}${(100 * change).toFixed(1)} %`, gib(one.memory_total_bytes), one.layout];
    };
    const note = element("p", "Each changes the result of the training; none is chosen.");
    if (found.others.length) put(place, note, table(["change", "step", "against the best", "GiB", "fastest layout then"], found.others.map(cells)));
    else put(place, element("p", "Software and device have no other."));
  } catch (error) { if (own === turn) put(place, element("p", error.message)); }
}

function gpusTicks() {
  const { sizes } = machines.find(({ name }) => name === state.cluster) || machines[0];
  put($("gpus_ticks"), ...sizes.map((_, i) => element("option", i)));
  const brief = (n) => (n >= 1000 ? `${Math.floor(n / 1000)}k` : n);
  put($("gpus_words"), ...sizes.filter((_, i) => i % 2 === 0).map((n) => element("span", brief(n))));
  $("gpus_slider").max = sizes.length - 1;
  const off = (n) => Math.abs(Math.log2(n / (state.gpus || 1)));
  $("gpus_slider").value = sizes.reduce((best, n, i) => (off(n) < off(sizes[best]) ? i : best), 0);
  $("gpus_shown").textContent = Number(state.gpus || 0).toLocaleString("en");
}

function fill() {
  for (const option of [...$("model").options].filter(({ value }) => value === "own")) option.remove();
  if (state.config) $("model").prepend(element("option", `own: ${state.config.name || state.config.model_type || "config.json"}`, { value: "own" }));
  for (const name of WORDS) $(name).value = state[name] ?? "";
  for (const name of NUMBERS) $(name).value = state[name] >= 1e9 ? state[name].toExponential().replace("+", "") : state[name] ?? "";
  gpusTicks();
  for (const name of Object.keys(PINS)) $(`pin_${name}`).value = state.pins[name] ?? "";
}

const SCALES = { "": 1, k: 1e3, m: 1e6, b: 1e9, t: 1e12 };
function take(name, text) {
  // 15T, 1.5e12, 2,000,000; null: nothing was given; undefined: no number.
  const plain = text.replaceAll(",", "").replace(/usd|days?/i, "").trim();
  if (plain === "") return null;
  const [, digits, scale] = /^(\d*\.?\d+(?:e\+?\d+)?|\d+\.)\s*([kmbt]?)$/i.exec(plain) || [];
  if (digits === undefined) return undefined;
  const number = Number(digits) * SCALES[scale.toLowerCase()];
  return ["tokens", "deadline_days", "budget_usd", "usd_per_gpu_hour"].includes(name) ? number : Math.round(number);
}

function refuse(name, text) {
  clearTimeout(timer); clearTimeout(searchTimer);
  turn += 1;
  $("searching").textContent = "";
  problems(`${$(name).parentElement.textContent.trim()}: not a number above 0 (as 15T, 2M or 1.5e12): ${text}`);
}

function listen() {
  for (const name of WORDS) $(name).addEventListener("input", () => {
    state[name] = $(name).value;
    if (name === "model" && state.model !== "own") state.config = null;
    if (name === "cluster") gpusTicks();
    changed();
  });
  for (const name of NUMBERS) $(name).addEventListener("input", () => {
    const number = take(name, $(name).value);
    $(name).setAttribute("aria-invalid", number === undefined);
    if (number === undefined) { refuse(name, $(name).value); return; }
    state[name] = number;
    if (name === "gpus") gpusTicks();
    changed();
  });
  $("gpus_slider").addEventListener("input", () => {
    const { sizes } = machines.find(({ name }) => name === state.cluster) || machines[0];
    state.gpus = sizes[Number($("gpus_slider").value)];
    $("gpus").value = state.gpus;
    $("gpus_shown").textContent = state.gpus.toLocaleString("en");
    changed();
  });
  for (const name of Object.keys(PINS)) $(`pin_${name}`).addEventListener("input", () => {
    const text = $(`pin_${name}`).value;
    state.pins[name] = text === "" ? "" : Number.isNaN(Number(text)) ? text : Number(text);
    changed();
  });
  $("otherwise_button").addEventListener("click", otherwise);
  $("sizes_button").addEventListener("click", sizes);
  $("own_button").addEventListener("click", takeOwn);
  $("own_file").addEventListener("change", async () => {
    const [file] = $("own_file").files;
    if (!file) return;
    if (file.size > 65536) { problems(`${file.name}: larger than 64 KiB`); return; }
    $("own_text").value = await file.text();
    takeOwn();
  });
  $("keep").addEventListener("click", () => {
    if (!shown || !shown.searched) return;
    state.against = question(); kept = shown;
    linked(); versus();
  });
  $("drop").addEventListener("click", () => { state.against = null; kept = null; linked(); versus(); });
  $("link").addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(location.href); $("link").textContent = "Copied"; }
    catch { $("link").textContent = "The link is in the address bar"; }
    setTimeout(() => { $("link").textContent = "Copy link"; }, 1500);
  });
  $("question").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => { kept = null; read(); fill(); changed(); });
}

function read() {
  if (location.hash.length < 2) return;
  try {
    const found = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    if (found && typeof found === "object") state = { ...START, deadline_days: null, ...found, pins: { ...(found.pins || {}) } };
  } catch { problems("The link holds no question that can be read."); }
}

async function begin() {
  const choices = await (await fetch("api/choices")).json();
  ({ colours, labels, machines } = choices);
  for (const [id, names] of [["model", choices.models]]) put($(id), ...names.map((name) => element("option", name)));
  const cluster = ({ name, chip, price }) => element("option", `${chip} - ${name} - ${price}`, { value: name });
  put($("cluster"), ...machines.map(cluster));
  put($("beside"), element("option", "another kind", { value: "" }), ...machines.map(cluster));
  put($("software"), element("option", "usual", { value: "" }), ...choices.software.map((name) => element("option", name)));
  for (const [name, values] of Object.entries(PINS)) {
    const label = element("label", name.replaceAll("_", " "));
    const select = element("select", null, { id: `pin_${name}` });
    put(select, element("option", "auto", { value: "" }), ...values.map((value) => element("option", value)));
    label.append(select);
    $("pins").append(label);
  }
  read(); fill(); listen(); changed();
}
begin();
