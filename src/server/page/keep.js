// The conversation in this browser: kept over a reload in localStorage, until a new chat empties it. The key is no part
// of it. Where storage is forbidden or full, the conversation lasts as long as the page.
"use strict";

const Keep = (() => {
  const STORE = "attest.conversation";
  const VERSION = 1;

  // An entry of logprobs as [token, logprob, [[other, logprob], ...]]: a fifth of its JSON.
  const pack =
      (entry) => [entry.token, entry.logprob, (entry.top_logprobs ?? []).map((other) => [other.token, other.logprob])];
  const isPacked = (entry) => typeof entry[0] === "string" && typeof entry[1] === "number";
  function unpack(entry) {
    if (!isPacked(entry) || !entry[2].every(isPacked)) throw new TypeError("no entry of logprobs");
    return {token: entry[0], logprob: entry[1], top_logprobs: entry[2].map(([token, logprob]) => ({token, logprob}))};
  }

  function packTurn(turn, withTokens) {
    if (turn.role === "user") return {role: "user", text: turn.text};
    const {tokens, ends, text} = turn.tokens;
    return {
      role: "assistant",
      text,
      who: turn.who,
      meta: turn.meta.textContent,
      tokens: withTokens ? tokens.map(pack) : [],
      ends: withTokens ? ends : [],
    };
  }

  function unpackTurn(turn) {
    if (typeof turn.text !== "string") throw new TypeError("no text");
    if (turn.role === "user") return {role: "user", text: turn.text};
    const areEnds = turn.ends.length === turn.tokens.length && turn.ends.every(Number.isInteger);
    if (turn.role !== "assistant" || !areEnds) throw new TypeError("no answer");
    return {
      role: "assistant",
      text: turn.text,
      who: String(turn.who),
      meta: String(turn.meta),
      tokens: turn.tokens.map(unpack),
      ends: turn.ends,
    };
  }

  // Stores what must not be lost first: where the tokens of all answers are too much, those of the last one, or none.
  function save({turns, draft, used, request}) {
    try {
      if (turns.length === 0 && draft === "") return localStorage.removeItem(STORE);
      for (const first of [0, turns.length - 1, turns.length]) {
        const packed = turns.map((turn, i) => packTurn(turn, i >= first));
        try {
          return localStorage.setItem(STORE, JSON.stringify({version: VERSION, turns: packed, draft, used, request}));
        } catch (error) {
          if (error.name !== "QuotaExceededError") throw error;
        }
      }
      localStorage.removeItem(STORE);  // better none than an old one
    } catch {                          /* no storage */
    }
  }

  // As save was given it, with turns as plain values; null: nothing is kept, or it is not ours.
  function load() {
    try {
      const kept = JSON.parse(localStorage.getItem(STORE));
      if (kept?.version !== VERSION) return null;
      const {path, body} = kept.request ?? {};
      return {
        turns: kept.turns.map(unpackTurn),
        draft: String(kept.draft),
        used: Number(kept.used) || 0,
        request: typeof path === "string" && typeof body === "object" ? {path, body} : null
      };
    } catch {
      return null;
    }
  }

  return {save, load};
})();
