// Tokens of an answer: their text and probabilities, and the popover that shows what else could have come.
"use strict";

const MAX_SURPRISE = 4;  // nats, the fullest tint: a probability of 1.8 %

// The tokens of one answer. `ends[i]` is where token i ends in the text; a token may add nothing to it (part of a
// character, or a special token).
class TokenList {
  constructor() {
    this.tokens = [];
    this.ends = [];
    this.text = "";
  }

  // One event: the text it adds, and the entries of its logprobs. The server may hold text back (a stop string that may
  // begin, half a character), so an event can bring several tokens; they are laid along the text by their bytes.
  append(text, entries) {
    const decoder = new TextDecoder();
    let used = 0;
    entries.forEach((entry, i) => {
      let piece = decoder.decode(new Uint8Array(entry.bytes ?? []), {stream: true});
      if (i + 1 === entries.length)
        piece = text.slice(used);
      else if (!text.startsWith(piece, used))
        piece = "";
      used += piece.length;
      this.tokens.push(entry);
      this.ends.push(this.text.length + used);
    });
    this.text += text;
  }

  get length() { return this.tokens.length; }
  begin(i) { return i === 0 ? 0 : this.ends[i - 1]; }
  textOf(i) { return this.text.slice(this.begin(i), this.ends[i]); }
  // 0 where nothing else could have come, 1 at MAX_SURPRISE and beyond.
  surprise(i) { return Math.min(1, Math.max(0, -this.tokens[i].logprob) / MAX_SURPRISE); }
  probability(i) { return Math.exp(this.tokens[i].logprob); }

  // The token that holds position `at` of the text.
  at(at) {
    let low = 0, high = this.ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ends[middle] <= at)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  // Appends text[begin, end) to `parent`, one element for each token in it.
  emit(parent, begin, end) {
    let at = begin;
    for (let i = this.at(begin); at < end && i < this.length; ++i) {
      const to = Math.min(end, this.ends[i]);
      if (to > at) parent.append(this.makeSpan(i, this.text.slice(at, to)));
      at = Math.max(at, to);
    }
    if (at < end) parent.append(this.text.slice(at, end));
  }

  makeSpan(i, text, extra = "") {
    const span = make("span", {class: `tok${extra}`, "data-i": i}, text);
    span.style.setProperty("--surprise", (this.surprise(i) ** 0.7).toFixed(3));
    return span;
  }

  // As it was generated: no markdown, every token, also those without text. Continues behind what `parent` has.
  showRaw(parent) {
    for (let i = parent.childElementCount; i < this.length; ++i) {
      const text = this.textOf(i);
      parent.append(
          text === "" ? this.makeSpan(i, this.tokens[i].token || "\u2205", " mark") :
                        this.makeSpan(i, text.replace(/\n/g, "\u21b5\n")));
    }
  }

  meanProbability() {
    const sum = this.tokens.reduce((total, _, i) => total + this.probability(i), 0);
    return this.length === 0 ? 0 : sum / this.length;
  }
}

const TokenPopover = (() => {
  const popover = byId("popover");
  let current = null;  // the span that is shown

  function row(text, logprob, isChosen) {
    const share = Math.exp(logprob);
    const bar = make("span", {class: "bar", "aria-hidden": "true"});
    bar.style.setProperty("--share", share.toFixed(4));
    return make(
        "li", {class: isChosen ? "chosen" : undefined}, make("span", {class: "share"}, formatPercent(share)), bar,
        make("span", {class: "alt"}, visibleText(text)), isChosen ? make("span", {class: "sr"}, "chosen") : null);
  }

  function show(list, i, span) {
    hide();
    current = span;
    span.classList.add("shown");
    const entry = list.tokens[i];
    const alternatives = entry.top_logprobs ?? [];
    const rank = alternatives.findIndex((other) => other.token === entry.token && other.logprob === entry.logprob);
    const rows = alternatives.map((other, k) => row(other.token, other.logprob, k === rank));
    if (rank < 0) rows.push(row(entry.token, entry.logprob, true));
    const seen = alternatives.reduce((sum, other) => sum + Math.exp(other.logprob), 0) +
        (rank < 0 ? Math.exp(entry.logprob) : 0);
    let rankWords = rank === 0 ? "the likeliest" : `number ${rank + 1}`;
    if (rank < 0) rankWords = `not among the ${alternatives.length} likeliest`;
    popover.replaceChildren(
        make(
            "p", {class: "pop-head"}, make("strong", {}, visibleText(entry.token)),
            make("span", {}, `token ${i + 1} of ${list.length}`),
            make("span", {}, `logprob ${entry.logprob.toFixed(3)}`)),
        make("ol", {class: "alternatives"}, ...rows),
        make(
            "p", {class: "note"},
            `${rankWords} \u00b7 others ${formatPercent(Math.max(0, 1 - seen))} \u00b7 as the model gave it`));
    popover.hidden = false;
    place(span);
  }

  // Under the token, or over it where there is no room; inside the window.
  function place(span) {
    // A token that begins with the blank at a line's end has its word in the next line.
    const at = [...span.getClientRects()].sort((a, b) => b.width - a.width)[0] ?? span.getBoundingClientRect();
    const box = popover.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left - 12, innerWidth - box.width - 8));
    const below = at.bottom + 6 + box.height < innerHeight || at.top < box.height + 10;
    popover.style.setProperty("left", `${left}px`);
    popover.style.setProperty("top", `${below ? at.bottom + 6 : at.top - box.height - 6}px`);
  }

  function hide() {
    if (current) current.classList.remove("shown");
    current = null;
    popover.hidden = true;
  }

  const spoken = (list, i) => {
    const entry = list.tokens[i];
    const words = (one) => `${spokenText(one.token)} ${formatPercent(Math.exp(one.logprob))}`;
    const others = (entry.top_logprobs ?? []).filter((other) => other.token !== entry.token).slice(0, 3);
    return `${words(entry)}.${others.length > 0 ? ` Instead: ${others.map(words).join(", ")}` : ""}`;
  };

  // Makes the tokens in `body` show their alternatives, by pointer, by touch, and with the arrow keys while it has
  // focus.
  function watch(body, listOf) {
    let walk = -1;
    const showAt = (span) => show(listOf(), Number(span.dataset.i), span);
    const spans = () => [...body.querySelectorAll(".tok")];
    body.addEventListener("pointerover", (event) => {
      const span = event.target.closest(".tok");
      if (span && event.pointerType !== "touch") showAt(span);
    });
    body.addEventListener("pointerout", (event) => {
      if (event.pointerType !== "touch" && event.target === current) hide();
    });
    body.addEventListener("click", (event) => {
      const span = event.target.closest(".tok");
      if (span && getSelection().isCollapsed) {
        walk = spans().indexOf(span);
        showAt(span);
      }
    });
    body.addEventListener("keydown", (event) => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (event.target !== body || event.altKey || event.ctrlKey || event.metaKey) return;
      const all = spans();
      if (all.length === 0) return;
      if (event.key === "Home")
        walk = 0;
      else if (event.key === "End")
        walk = all.length - 1;
      else if (step)
        walk = Math.max(0, Math.min(all.length - 1, walk + step));
      else
        return;
      event.preventDefault();
      all[walk].scrollIntoView({block: "nearest"});
      showAt(all[walk]);
      announce(spoken(listOf(), Number(all[walk].dataset.i)));
    });
    body.addEventListener("blur", hide);
  }

  addEventListener("scroll", hide, {capture: true, passive: true});
  return {watch, hide, isShown: () => current !== null};
})();

// Tells a screen reader, once it is silent. The same words are told again: a blank makes them new.
function announce(text) {
  const announcer = byId("announcer");
  announcer.textContent = announcer.textContent === text ? `${text}\u00a0` : text;
}
