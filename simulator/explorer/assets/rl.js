"use strict";
// State -> question -> answer. The state is the page's link, as on the page beside it.
const NUMBERS = ["prompts", "samples", "prompt_tokens", "answer_tokens", "sequence_length", "global_batch", "gpus", "staleness", "generator_tp", "generator_gpus"];
const WORDS = ["model", "cluster", "algorithm", "mode", "partial_rollouts", "framework", "engine", "generator_precision"];
const PINS = ["tp", "pp", "cp", "ep", "micro_batch"];
const START = {
  model: "llama-3.1-8b", cluster: "dgx-h100", gpus: 16, algorithm: "grpo", prompts: 64, samples: 32,
  prompt_tokens: 256, answer_tokens: 1000, sequence_length: 4096, global_batch: 512,
  mode: "colocated", staleness: 0, partial_rollouts: "false", framework: "nemo-rl", engine: "vllm", generator_tp: 1, generator_precision: "bf16", pins: {},
};
const $ = (id) => document.getElementById(id);
const page = crypto.randomUUID ? crypto.randomUUID() : String(Math.random());
let state = { ...START }, asking = null, timer = 0;

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null && text !== undefined) made.textContent = text;
  return made;
}
const put = (place, ...children) => { place.replaceChildren(...children); return place; };
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const three = (v) => (Math.abs(v) >= 999.5 ? Math.round(v).toLocaleString("en-US") : v.toPrecision(3));
const seconds = (s) => (s >= 1 || s === 0 ? `${three(s)} s` : `${three(1000 * s)} ms`);
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
const percent = (x) => `${(100 * x).toFixed(1)} %`;
function money(usd) {
  if (usd === null || usd === undefined) return "no price";
  const [scale, word] = usd >= 1e6 ? [1e6, "M "] : usd >= 1e3 ? [1e3, "k "] : [1, ""];
  return `${three(usd / scale)} ${word}USD`;
}

function question() {
  const asked = {};
  for (const name of [...WORDS, ...NUMBERS]) if (state[name] !== "" && state[name] !== null && state[name] !== undefined) asked[name] = state[name];
  asked.partial_rollouts = String(asked.partial_rollouts) === "true";
  if (asked.mode === "colocated") delete asked.generator_gpus;
  const pins = Object.fromEntries(Object.entries(state.pins).filter(([, v]) => v !== ""));
  if (Object.keys(pins).length) asked.pins = pins;
  return asked;
}

async function ask(splits) {
  if (asking) asking.abort();
  const { signal } = (asking = new AbortController());
  const query = new URLSearchParams({ q: JSON.stringify(question()), page, ...(splits ? { splits: "1" } : {}) });
  const reply = await fetch(`/api/rl?${query}`, { signal });
  const found = await reply.json();
  if (!reply.ok) throw new Error((found.problems || ["no answer"]).join("\n"));
  return found;
}

function table(heads, rows) {
  const made = element("table"), head = element("tr");
  head.append(...heads.map((text) => element("th", text, { scope: "col" })));
  made.append(element("thead"), element("tbody"));
  made.tHead.append(head);
  for (const cells of rows) {
    const row = element("tr");
    row.append(...cells.map((text) => element("td", text)));
    made.tBodies[0].append(row);
  }
  return made;
}

function lanes(found) {
  const whole = Math.max(...found.spans.map((span) => span.end_s));
  const ink = (phase) => found.inks[phase][dark() ? 2 : 1];
  const rows = ["generator", "trainer"].map((lane) => {
    const row = element("div", null, { class: "lane" });
    row.append(element("span", lane));
    const line = element("div", null, { class: "line" });
    for (const span of found.spans.filter((one) => one.lane === lane)) {
      const words = `${found.inks[span.phase][0]}: ${seconds(span.end_s - span.start_s)}`;
      const bar = element("i", null, { title: words });
      bar.style.left = `${(100 * span.start_s) / whole}%`;
      bar.style.width = `${(100 * (span.end_s - span.start_s)) / whole}%`;
      bar.style.background = ink(span.phase);
      line.append(bar);
    }
    row.append(line);
    return row;
  });
  put($("lanes"), ...rows);
  const phases = [...new Set(found.spans.map((span) => span.phase))];
  put($("legend"), ...phases.map((phase) => {
    const item = element("li", found.inks[phase][0]), sign = element("b");
    sign.style.background = ink(phase);
    item.prepend(sign);
    return item;
  }));
}

const PARTS = { generation_s: "generation", reward_s: "reward", log_probabilities_s: "log-probabilities", training_s: "training", refit_s: "refit", phase_change_s: "change of sides", driver_s: "driver" };

function show(found) {
  const step = found.rl, verdict = $("verdict");
  $("problems").hidden = true;
  if (!step) {
    verdict.className = "OOM";
    return put(verdict, element("p", "This cannot be", { class: "large" }), element("p", found.reason, { class: "reason" }));
  }
  verdict.className = step.verdict;
  const large = element("p", `${seconds(step.step_time_s)} a step `, { class: "large" });
  large.append(element("span", step.verdict, { class: "word" }));
  const usd = `${money(step.usd_per_1000_updates)} for 1,000 updates, goodput ${percent(step.goodput)}`;
  const waits = step.mode === "colocated" ? "colocated: all GPUs generate, then all train"
    : `the trainer waits ${percent(step.waiting.trainer)} of a step, the generator ${percent(step.waiting.generator)}${step.lent_s > 0 ? `, devices that train write for ${seconds(step.lent_s)}` : ""}; weights up to ${step.staleness.p90} updates old`;
  put(verdict, large, element("p", `P10 to P90: ${seconds(step.p10_s)} to ${seconds(step.p90_s)}; ${step.evidence.grade}, error to expect ${percent(step.evidence.mean_error)}`),
    element("p", waits), element("p", usd), element("p", `trainer ${found.trainer_layout}; ${step.layouts.generation.replicas} replicas of TP ${step.layouts.generation.tp}, up to ${step.layouts.generation.max_sequences} sequences each`));
  lanes(found);
  put($("phases"), table(["phase", "time", "of the step"], Object.entries(PARTS).filter(([key]) => step[key] > 0).map(([key, word]) => [word, seconds(step[key]), percent(step[key] / step.step_time_s)])));
  put($("memory"), table(["phase", "memory", "usable", ""], Object.entries(step.memory).map(([name, side]) => [name, gib(side.total_bytes), gib(side.usable_bytes), side.verdict])));
  put($("remedies"), ...found.remedies.map((one) => element("li", `${one.field} = ${one.value}: ${seconds(one.step_time_s)} a step (${one.why})`)), ...(found.remedies.length ? [] : [element("li", "nothing that was tried")]));
  put($("evidence"), ...found.caveats.map((text) => element("li", text)));
  if (!found.tried_splits) return put($("layouts"));
  put($("layouts"), table(["mode", "train", "generate", "engine", "step", "trainer waits", "generator waits", "1,000 updates", "memory", "trainer's layout"],
    found.tried.map((row) => [row.mode, row.training_gpus, row.generation_gpus, row.generation_layout, seconds(row.step_time_s), percent(row.trainer_waits), percent(row.generator_waits), money(row.usd), row.verdict, row.layout])));
}

async function update(splits) {
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(question()))}`);
  $("verdict").classList.add("waiting");
  $("otherwise_button").disabled = splits;
  try {
    show(await ask(splits));
  } catch (error) {
    if (error.name === "AbortError") return;
    $("problems").hidden = false;
    $("problems").textContent = error.message;
  } finally {
    $("verdict").classList.remove("waiting");
    $("otherwise_button").disabled = false;
  }
}

function changed(event) {
  const { id, value } = event.target, number = value === "" ? "" : Number(value);
  if (PINS.includes(id)) state.pins = { ...state.pins, [id]: number };
  else state[id] = NUMBERS.includes(id) ? number : value;
  clearTimeout(timer);
  timer = setTimeout(() => update(false), 250);
}

async function begin() {
  const choices = await (await fetch("/api/choices")).json();
  for (const [id, names] of [["model", choices.models], ["cluster", choices.clusters], ["framework", choices.rl_frameworks]]) put($(id), ...names.map((name) => element("option", name, { value: name })));
  for (const name of PINS) {
    const label = element("label", name.replaceAll("_", "-").toUpperCase().replace("MICRO-BATCH", "Micro-batch "));
    label.append(element("input", null, { id: name, type: "number", min: "1", step: "1" }));
    $("pins").append(label);
  }
  try {
    const given = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    state = { ...START, ...given, pins: { ...given.pins } };
  } catch { /* a link without a state: the page begins as it is */ }
  for (const name of [...WORDS, ...NUMBERS]) if ($(name)) $(name).value = state[name] ?? "";
  for (const name of PINS) $(name).value = state.pins[name] ?? "";
  $("question").addEventListener("input", changed);
  $("question").addEventListener("submit", (event) => event.preventDefault());
  $("otherwise_button").addEventListener("click", () => update(true));
  update(false);
}
begin();
