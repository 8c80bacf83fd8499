// The conversation: turns, the answer under way, editing and regenerating, and the request that comes next.
"use strict";

const Chat = (() => {
  const TOP_LOGPROBS = 5;
  const turns = [];  // Turn, oldest first: user and assistant in alternation
  const list = byId("turns");
  const draft = byId("draft");
  const scroller = byId("scroller");
  let running = null;  // AbortController of the answer under way
  let showsTokens = false;
  let model = "", contextLength = 0, hasTemplate = true;
  let nextSeed = drawSeed();
  let lastRequest = null;  // {path, body}
  let used = 0;            // tokens of the context, after the last answer
  let onRequest = () => {};

  // Every answer has a seed of its own that is sent, so that the curl of a request gives the same text again.
  function drawSeed() { return crypto.getRandomValues(new Uint32Array(1))[0]; }

  class Turn {
    constructor(role, text, who = role === "user" ? "You" : model || "Model") {
      this.role = role;
      this.who = who;
      this.tokens = new TokenList();
      this.text = text;  // of the user; an answer's is in its tokens
      this.body = make("div", {class: "body"});
      this.meta = make("p", {class: "meta note"});
      this.tools = make("div", {class: "turn-tools"});
      this.node =
          make("li", {class: `turn ${role}`}, make("h3", {class: "who"}, who), this.body, this.meta, this.tools);
      if (role === "user") {
        this.body.append(text);
        this.tools.append(this.tool("Edit", () => edit(this)));
      } else {
        this.body.classList.add("answer");
        for (const [name, value] of Object.entries(
                 {tabindex: "0", role: "group", "aria-label": "Answer. The arrow keys walk through its tokens."})) {
          this.body.setAttribute(name, value);
        }
        this.markdown = new Markdown.View(this.body);
        this.tools.append(
            this.tool("Regenerate", () => regenerate(this)),
            this.tool("Copy", (button) => copyText(this.content, button)));
        TokenPopover.watch(this.body, () => this.tokens);
      }
    }
    tool(label, action) {
      const button = make("button", {type: "button", class: "quiet"}, label);
      button.addEventListener("click", () => action(button));
      return button;
    }
    get content() { return this.role === "user" ? this.text : this.tokens.text; }
    show() {
      if (this.isRaw !== showsTokens) this.markdown.clear();
      this.isRaw = showsTokens;
      this.body.classList.toggle("raw", showsTokens);
      if (showsTokens)
        this.tokens.showRaw(this.body);
      else
        this.markdown.update(this.tokens.text, (parent, begin, end) => this.tokens.emit(parent, begin, end));
    }
    remove() { this.node.remove(); }
  }

  // ---- what is sent ----

  function requestFor(history, seed) {
    // The usage of each moment: an answer that is stopped has told how full the context is.
    const streamed = {stream: true, stream_options: {include_usage: true, continuous_usage_stats: true}};
    const shared = {...Sampling.fields(seed), ...streamed};
    if (!hasTemplate) {
      const prompt = history.map((turn) => turn.content).join("");
      return {
        path: "/v1/completions",
        body: {model, prompt, ...shared, max_tokens: shared.max_tokens ?? 256, logprobs: TOP_LOGPROBS}
      };
    }
    const messages = history.map((turn) => ({role: turn.role, content: turn.content}));
    if (Sampling.systemMessage() !== "") messages.unshift({role: "system", content: Sampling.systemMessage()});
    return {
      path: "/v1/chat/completions",
      body: {model, messages, ...shared, logprobs: true, top_logprobs: TOP_LOGPROBS}
    };
  }

  // A question that nothing answered is no part of the conversation.
  const answered = () => {
    const last = turns.at(-1);
    return last && last.content === "" && last.tokens.length === 0 ? turns.slice(0, -2) : turns;
  };

  // The request that is being answered, or the one that Enter would send; with nothing typed, the one sent last.
  function currentRequest() {
    if (running) return {...lastRequest, what: "The request that is being answered"};
    if (draft.value.trim() !== "" || lastRequest === null) {
      const history = [...answered(), {role: "user", content: draft.value}];
      return {...requestFor(history, nextSeed), what: "What Enter sends now"};
    }
    return {...lastRequest, what: "The request answered last"};
  }

  // The text and the logprobs' entries of one event, chat or completion.
  function readChoice(choice) {
    if (choice.delta) return {text: choice.delta.content ?? "", entries: choice.logprobs?.content ?? []};
    const logs = choice.logprobs;
    const encoder = new TextEncoder();
    const entries = (logs?.tokens ?? []).map((token, i) => ({
                                               token,
                                               logprob: logs.token_logprobs[i],
                                               bytes: [...encoder.encode(token)],
                                               top_logprobs: Object.entries(logs.top_logprobs[i] ?? {})
                                                                 .map(([other, logprob]) => ({token: other, logprob}))
                                                                 .sort((a, b) => b.logprob - a.logprob)
                                                                 .slice(0, TOP_LOGPROBS),
                                             }));
    return {text: choice.text ?? "", entries};
  }

  // ---- one answer ----

  async function answer() {
    const history = [...turns];
    const turn = addTurn("assistant", "");
    const request = requestFor(history, nextSeed);
    nextSeed = drawSeed();
    lastRequest = request;
    running = new AbortController();
    const {signal} = running;
    setBusy(true);
    Sampling.clearErrors();
    turn.node.classList.add("busy");
    turn.body.setAttribute("aria-busy", "true");
    scrollToEnd();
    keep();
    const began = performance.now();
    showMeta(turn, {began, first: null, isRunning: true});
    let first = null, last = null, usage = null, reason = null, failure = null, frame = null;
    const speaker = new Speaker();
    const draw = () => {
      frame = null;
      const follows = isAtEnd();
      turn.show();
      showMeta(turn, {began, first, last: performance.now(), usage, isRunning: true});
      if (follows) scrollToEnd();
    };
    try {
      for await (const event of Api.events(request.path, JSON.stringify(request.body), signal)) {
        if (event.usage) {
          usage = event.usage;
          showContext(usage.prompt_tokens + usage.completion_tokens);
        }
        const choice = event.choices[0];
        if (!choice) continue;
        const {text, entries} = readChoice(choice);
        if (text !== "" || entries.length > 0) {
          last = performance.now();
          first ??= last;
          turn.tokens.append(text, entries);
          speaker.add(text);
          frame ??= requestAnimationFrame(draw);
        }
        reason = choice.finish_reason ?? reason;
      }
    } catch (error) {
      if (error.name === "AbortError")
        reason = "stopped";
      else
        failure = error instanceof ApiError ? error : new ApiError(0, `The answer could not be read: ${error.message}`);
    }
    if (frame !== null) cancelAnimationFrame(frame);
    const follows = isAtEnd();
    running = null;
    turn.show();
    turn.node.classList.remove("busy");
    turn.body.removeAttribute("aria-busy");
    showMeta(turn, {began, first, last, usage, reason, seed: request.body.seed});
    setBusy(false);
    if (failure)
      showFailure(turn, failure);
    else
      speaker.end(reason === "stopped" ? "Stopped." : "End of the answer.");
    keep();
    if (follows) scrollToEnd();
  }

  function showMeta(turn, {began, first, last, usage, reason, seed, isRunning}) {
    const parts = [];
    const count = usage?.completion_tokens ?? turn.tokens.length;
    if (first !== null) {
      parts.push(`${formatCount(count)} ${count === 1 ? "token" : "tokens"}`);
      if (turn.tokens.length > 1 && last > first)
        parts.push(`${formatRate((turn.tokens.length - 1) / ((last - first) / 1000))} tokens/s`);
      parts.push(`first after ${formatSeconds(first - began)}`);
    } else if (isRunning) {
      parts.push("waiting");
    }
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      parts.push(
          `prompt ${formatCount(usage.prompt_tokens)}${cached > 0 ? `, ${formatCount(cached)} of it cached` : ""}`);
    }
    if (!isRunning && turn.tokens.length > 0) parts.push(`mean p ${turn.tokens.meanProbability().toFixed(2)}`);
    const words = {length: "cut at the limit", stopped: "stopped by you", abort: "the server shut down", stop: ""};
    if (reason && words[reason] !== "") parts.push(words[reason] ?? reason);
    if (!isRunning && turn.tokens.length > 0) parts.push(`seed ${seed}`);
    setText(turn.meta, parts.join(" \u00b7 "));
  }

  // What went wrong, in the server's words, and what can be done about it.
  function showFailure(turn, error) {
    const titles = {
      0: turn.tokens.length > 0 ? "Broken off" : "No answer",
      400: "Refused",
      401: "Not let in",
      404: "Not found",
      413: "Too large",
      503: "Busy"
    };
    const isTooLong =
        error.status === 400 && ["messages", "prompt"].includes(error.field) && /tokens/.test(error.message);
    const title = titles[error.status] ?? "The server failed";
    let hint = "";
    if (error.status === 0) hint = "Is it still running? The message is kept.";
    if (error.status === 503)
      hint = `It asks to try again${error.retryAfter ? ` in ${error.retryAfter} s` : " later"}.`;
    if (isTooLong) {
      hint = `A conversation has room for ${formatCount(contextLength)} tokens: ` +
          "shorten the message, or begin a new chat.";
    }
    const card = make(
        "div", {class: "failure", role: "alert"},
        make(
            "p", {}, make("strong", {}, title), error.status ? ` ${error.status}` : "",
            error.field ? make("code", {}, error.field) : null),
        make("p", {class: "said"}, error.message), hint ? make("p", {class: "note"}, hint) : null);
    const actions = make("div", {class: "turn-tools"}, turn.tool("Try again", () => regenerate(turn)));
    const field = error.field?.split(".")[0];
    if (field && Sampling.hasField(field)) {
      Sampling.showError(field, error.message);
      actions.append(turn.tool(`Go to ${field}`, () => {
        showView("sampling");
        Sampling.focus(field);
      }));
    }
    if (isTooLong) actions.append(turn.tool("New chat", clear));
    if (error.status === 401) actions.append(turn.tool("Enter a key", () => askForKey(error.message)));
    card.append(actions);
    turn.meta.before(card);
    turn.node.classList.add("failed");
  }

  // Sentences for a screen reader, as they become whole.
  class Speaker {
    constructor() { this.rest = ""; }
    add(text) {
      this.rest += text;
      const end = this.rest.search(/[.!?:]\s[^]*$|\n/);
      if (end < 0) return;
      announce(this.rest.slice(0, end + 1));
      this.rest = this.rest.slice(end + 1).trimStart();
    }
    end(words) { announce(`${this.rest}\n${words}`.trim()); }
  }

  // ---- turns ----

  function addTurn(role, text, who) {
    const turn = new Turn(role, text, who);
    turns.push(turn);
    list.append(turn.node);
    byId("welcome").hidden = true;
    return turn;
  }

  function cutFrom(index) {
    for (const turn of turns.splice(index)) turn.remove();
  }

  async function send(text) {
    if (running || text.trim() === "") return;
    cutFrom(answered().length);
    addTurn("user", text);
    await answer();
  }

  async function regenerate(turn = turns.at(-1)) {
    if (running || !turn || turn.role !== "assistant") return;
    cutFrom(turns.indexOf(turn));
    draft.focus();
    await answer();
  }

  // The message becomes a text box; sending it drops what came after it.
  function edit(turn = turns.findLast((t) => t.role === "user")) {
    if (running || !turn) return;
    const box = make("textarea", {"aria-label": "Edit the message", rows: 1});
    box.value = turn.text;
    const close = () => {
      turn.body.replaceChildren(turn.text);
      turn.node.classList.remove("editing");
      draft.focus();
    };
    const submit = async () => {
      if (running || box.value.trim() === "") return;
      const text = box.value;
      cutFrom(turns.indexOf(turn));
      draft.focus();
      await send(text);
    };
    box.addEventListener("input", () => fit(box));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        submit();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
    });
    turn.node.classList.add("editing");
    turn.body.replaceChildren(
        box, make("div", {class: "turn-tools"}, turn.tool("Send", submit), turn.tool("Cancel", close)));
    fit(box);
    box.focus();
    box.setSelectionRange(box.value.length, box.value.length);
  }

  function clear() {
    stop();
    cutFrom(0);
    lastRequest = null;
    byId("welcome").hidden = false;
    showContext(0);
    keep();
    onRequest();
    draft.focus();
  }

  // A question that nothing answered is kept as what is typed: it can be sent again.
  function keep() {
    const kept = answered();
    Keep.save({turns: kept, draft: turns[kept.length]?.content ?? "", used, request: lastRequest});
  }

  function restore() {
    const kept = Keep.load();
    if (kept === null) return;
    for (const {role, text, who, meta, tokens, ends} of kept.turns) {
      const turn = addTurn(role, text, who);
      if (role === "user") continue;
      Object.assign(turn.tokens, {tokens, ends, text});
      setText(turn.meta, meta);
      turn.show();
    }
    lastRequest = kept.request;
    draft.value = kept.draft;
    fit(draft);
    showContext(kept.used);
    onRequest();
    scrollToEnd();
  }

  const lastAnswer = () => turns.findLast((turn) => turn.role === "assistant");

  function stop() { running?.abort(); }

  // ---- the box and the scroll ----

  function fit(box) {
    box.style.setProperty("height", "auto");
    box.style.setProperty("height", `${Math.min(box.scrollHeight + 2, innerHeight * 0.4)}px`);
  }

  const isAtEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
  const scrollToEnd = () => {
    scroller.scrollTop = scroller.scrollHeight;
  };
  // Who reads the end stays there when a screen keyboard comes, the window turns, or another view was shown meanwhile.
  let wasAtEnd = true;
  scroller.addEventListener("scroll", () => {
    wasAtEnd = isAtEnd();
  });
  new ResizeObserver(() => {
    if (wasAtEnd) scrollToEnd();
  }).observe(scroller);

  // One of the two buttons is there; the focus of the one that goes must not be lost.
  function setBusy(isBusy) {
    const [shown, gone] = isBusy ? [byId("stop"), byId("send")] : [byId("send"), byId("stop")];
    const hadFocus = document.activeElement === gone;
    shown.hidden = false;
    gone.hidden = true;
    if (hadFocus) (matchMedia("(pointer: fine)").matches ? draft : shown).focus();
    onRequest();
  }

  function showContext(count) {
    used = count;
    byId("context").hidden = contextLength === 0;
    setText(byId("context-text"), `context ${formatCount(used)} of ${formatCount(contextLength)}`);
    byId("context-meter").value = contextLength === 0 ? 0 : used / contextLength;
  }

  function setTokens(isOn) {
    const follows = isAtEnd();
    showsTokens = isOn;
    TokenPopover.hide();
    document.documentElement.classList.toggle("tinted", isOn);
    byId("toggle-tokens").setAttribute("aria-pressed", String(isOn));
    for (const turn of turns)
      if (turn.role === "assistant") turn.show();
    if (follows) scrollToEnd();
  }

  draft.addEventListener("input", () => {
    fit(draft);
    onRequest();
  });
  draft.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("composer").requestSubmit();
    } else if (event.key === "ArrowUp" && draft.value === "" && turns.length > 0) {
      event.preventDefault();
      edit();
    }
  });
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running || draft.value.trim() === "") return;
    const text = draft.value;
    draft.value = "";
    fit(draft);
    send(text);
  });
  byId("stop").addEventListener("click", () => {
    stop();
    draft.focus();
  });
  byId("new-chat").addEventListener("click", clear);
  addEventListener("pagehide", () => {
    if (running) keep();  // what came of it so far; else another tab may have kept something newer
  });
  byId("toggle-tokens").addEventListener("click", () => setTokens(!showsTokens));

  return {
    send,
    stop,
    clear,
    regenerate,
    edit,
    restore,
    currentRequest,
    focusAnswer: () => lastAnswer()?.body.focus(),
    lastAnswer: () => lastAnswer()?.content ?? "",
    lastTokens: () =>
        (lastAnswer()?.tokens.tokens ?? []).map((entry, i) => ({...entry, text: lastAnswer().tokens.textOf(i)})),
    toggleTokens: () => setTokens(!showsTokens),
    isRunning: () => running !== null,
    setModel(id) {
      model = id;
      onRequest();
    },
    setLimits(length, template) {
      contextLength = length;
      hasTemplate = template;
      byId("no-template").hidden = template;
      showContext(used);
      onRequest();
    },
    set onrequest(callback) { onRequest = callback; },
  };
})();
