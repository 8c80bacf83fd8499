// The live view: asks GET /engine once a second while the tab is visible, and draws the last minute.
"use strict";

const EngineView = (() => {
  const PERIOD_MS = 1000;
  const HISTORY = 60;
  const PHASES = {
    prefill: "whole prompts",
    extend: "rest of prompts",
    decode: "one token each",
    uniform_decode: "a few tokens each"
  };
  const gauges = new Map();
  let previous = null;  // the last answer, with its time
  let timer = null, failures = 0, lostAt = null;
  let onFound = () => {}, onState = () => {};

  // A number, its words, and a line of its last minute. `full` is the top of the line where there is a natural one.
  class Gauge {
    constructor(id, name, full) {
      this.values = [];
      this.full = full;
      this.value = make("span", {id: `g-${id}`, class: "value"});
      this.note = make("span", {class: "note"});
      this.line = makeSvg("path", {class: "line"});
      this.area = makeSvg("path", {class: "area"});
      this.node = make(
          "div", {class: "gauge", "data-gauge": id}, make("span", {class: "name"}, name), this.note, this.value,
          makeSvg(
              "svg", {viewBox: "0 0 118 28", preserveAspectRatio: "none", "aria-hidden": "true"}, this.area,
              this.line));
    }
    push(value, text, note) {
      this.values.push(value);
      if (this.values.length > HISTORY) this.values.shift();
      if (value === null) return;
      setText(this.value, text);
      setText(this.note, note);
      const top = Math.max(this.full ?? 0, ...this.values.map((v) => v ?? 0)) || 1;
      const first = HISTORY - this.values.length;
      let line = "", area = "", isOpen = false, x = 0;
      this.values.forEach((v, i) => {
        if (v === null) {
          if (isOpen) area += `V28Z`;
          isOpen = false;
          return;
        }
        x = (first + i) * 2;
        const y = (26.5 - (v / top) * 24).toFixed(1);
        line += `${isOpen ? "L" : "M"}${x} ${y}`;
        area += isOpen ? `L${x} ${y}` : `M${x} 28V${y}`;
        isOpen = true;
      });
      if (isOpen) area += "V28Z";
      this.line.setAttribute("d", line);
      this.area.setAttribute("d", area);
    }
  }

  function build() {
    for (const [id, name, full] of [
             ["speed", "tokens/s", 0], ["running", "running", 1], ["waiting", "waiting", 1], ["kv", "KV cache", 1]]) {
      const gauge = new Gauge(id, name, full);
      gauges.set(id, gauge);
      byId("gauges").append(gauge.node);
    }
    for (const [phase, words] of Object.entries(PHASES)) {
      byId("kernels").append(make(
          "li", {"data-phase": phase}, make("span", {class: "phase"}, phase.replace("_", " ")),
          make("span", {class: "rate note"}, words), make("code", {class: "kernel"})));
    }
  }

  function facts(list, entries) {
    if (list.childElementCount !== entries.length) {
      list.replaceChildren(...entries.map(() => make("div", {}, make("dt"), make("dd"))));
    }
    entries.forEach(([name, value], i) => {
      const [dt, dd] = list.children[i].children;
      setText(dt, name);
      setText(dd, value);
    });
  }

  const rate = (now, before, seconds) => (before === undefined ? 0 : Math.max(0, now - before) / seconds);

  function showKernels(now, seconds) {
    const atLoad = new Map(now.attention.at_load.map((entry) => [entry.phase, entry.kernel]));
    const before =
        new Map((previous?.attention.rows ?? []).map((entry) => [`${entry.phase} ${entry.kernel}`, entry.rows]));
    const quarantined = new Set(now.sentinel?.quarantined ?? []);
    for (const item of byId("kernels").children) {
      const phase = item.dataset.phase;
      const ran = now.attention.rows.filter((entry) => entry.phase === phase);
      // The one at work; else the one that computed most of what is not quarantined; else the choice made at load.
      let best = null, perSecond = 0;
      for (const entry of ran) {
        const speed = rate(entry.rows, before.get(`${phase} ${entry.kernel}`) ?? (previous ? 0 : entry.rows), seconds);
        const isBetter = !best || speed > perSecond || (speed === perSecond && entry.rows > best.rows);
        if (!quarantined.has(entry.kernel) && isBetter) [best, perSecond] = [entry, speed];
      }
      const chosen = atLoad.get(phase);
      const isOut = quarantined.has(chosen);
      const total = ran.reduce((sum, entry) => sum + entry.rows, 0);
      item.dataset.active = perSecond > 0;
      item.dataset.quarantined = isOut;
      let kernel = best?.kernel ?? chosen ?? "none";
      if (isOut) kernel = `${chosen} quarantined${best ? `, ${best.kernel} instead` : ""}`;
      setText(item.querySelector(".kernel"), kernel);
      let rateWords = PHASES[phase];
      if (perSecond > 0)
        rateWords = `${formatRate(perSecond)} rows/s`;
      else if (total > 0)
        rateWords = `${formatCount(total)} rows`;
      setText(item.querySelector(".rate"), rateWords);
    }
  }

  function showSentinel(sentinel) {
    const box = byId("sentinel");
    if (!sentinel) {
      box.dataset.state = "off";
      setText(byId("sentinel-line"), "No row is checked.");
      facts(byId("sentinel-facts"), []);
      return;
    }
    const {mismatches, quarantined, rows_checked: checked} = sentinel;
    let state = "unknown", line = "Nothing computed yet.";
    if (mismatches > 0) {
      [state, line] = ["bad", `${formatCount(mismatches)} of ${formatCount(checked)} checked rows were wrong.`];
    } else if (checked > 0) {
      [state, line] = ["good", `${formatCount(checked)} ${checked === 1 ? "row" : "rows"} recomputed, none wrong.`];
    }
    box.dataset.state = state;
    setText(byId("sentinel-line"), line);
    const ratios = sentinel.kernels.map((entry) => entry.worst_error_ratio);  // null: not finite
    let worst = ratios.length === 0 ? "\u2013" : `${formatPercent(Math.max(...ratios))} of its budget`;
    if (ratios.includes(null)) worst = "not finite";
    facts(byId("sentinel-facts"), [
      ["checks", sentinel.verify_rate >= 1 ? "every row" : `1 row in ${formatCount(1 / sentinel.verify_rate)}`],
      ["worst error", worst], ["if one is wrong", sentinel.on_mismatch],
      ["quarantined", quarantined.length === 0 ? "none" : quarantined.join(", ")],
      ["case files", formatCount(sentinel.cases_written)]
    ]);
  }

  function show(now) {
    const seconds = previous ? (now.at - previous.at) / 1000 : 1;
    const generated = rate(now.tokens.generated, previous?.tokens.generated, seconds);
    const prompted = rate(now.tokens.prompt, previous?.tokens.prompt, seconds);
    gauges.get("speed").push(generated, formatRate(generated), prompted > 0 ? `+${formatShort(prompted)} in` : "");
    const {running, waiting, max_running: most} = now.sequences;
    gauges.get("running").push(running, formatCount(running), `of ${formatCount(most)}`);
    gauges.get("waiting").push(waiting, formatCount(waiting), "");
    const kv = now.kv_cache;
    const share = kv.total_blocks === 0 ? 0 : kv.used_blocks / kv.total_blocks;
    gauges.get("kv").push(share, formatPercent(share), `of ${formatShort(kv.total_blocks * kv.block_size)}`);
    showKernels(now, seconds);
    showSentinel(now.sentinel);
    const cache = now.prefix_cache;
    let hits = cache.enabled ? "no hit yet" : "off";
    if (cache.hit_tokens > 0) {
      hits = `${formatPercent(cache.hit_tokens / cache.queried_tokens)} of ${formatCount(cache.queried_tokens)} tokens`;
    }
    let steps = formatCount(now.steps.run);
    for (const kind of ["failed", "discarded"]) {
      if (now.steps[kind] > 0) steps += `, ${formatCount(now.steps[kind])} ${kind}`;
    }
    facts(byId("engine-facts"), [
      ["prompt tokens", formatCount(now.tokens.prompt)], ["generated", formatCount(now.tokens.generated)],
      ["prefix cache", hits], ["steps", steps], ["preempted", formatCount(now.sequences.preempted)],
      ["version", now.version]
    ]);
    setText(byId("engine-since"), `up ${formatDuration(now.uptime_seconds)}`);
    const words = {
      ok: "serving",
      degraded: "serving, a kernel is quarantined",
      draining: "draining",
      failing: "failing",
      stopped: `stopped: ${now.reason}`
    };
    onState(now.status, words[now.status] ?? now.status);
    const isNew = previous === null || previous.wasLost;
    previous = now;
    if (isNew) onFound(now);
  }

  async function poll() {
    timer = null;
    const started = performance.now();
    try {
      const now = await Api.getJson("/engine", {signal: AbortSignal.timeout(5000)});
      failures = 0;
      lostAt = null;
      show({...now, at: performance.now()});
    } catch {
      ++failures;
      lostAt ??= new Date();
      for (const gauge of gauges.values()) gauge.push(null);
      if (previous) previous.wasLost = true;
      if (failures > 1) {
        const since = lostAt.toLocaleTimeString();
        setText(byId("engine-since"), `as it was at ${since}`);
        onState("lost", `no answer since ${since}`);
      }
    }
    if (!document.hidden) timer = setTimeout(poll, Math.max(100, PERIOD_MS - (performance.now() - started)));
  }

  function start() {
    build();
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) {
        clearTimeout(timer);
        timer = null;
      } else if (timer === null) {
        for (const gauge of gauges.values()) gauge.push(null);  // a gap: nothing was seen meanwhile
        poll();
      }
    });
    poll();
  }

  return {
    start,
    get now() { return previous; },
    set onfound(callback) { onFound = callback; },
    set onstate(callback) { onState = callback; }
  };
})();
