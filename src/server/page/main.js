// Wiring: the key, the models, the curl, the keyboard, the views of a narrow screen, light and dark.
"use strict";

// ---- the key ----

function askForKey(message = "") {
  setText(byId("key-error"), message);
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
  byId("key").focus();
  byId("key").select();
}

async function loadModels() {
  try {
    const {data} = await Api.getJson("/v1/models");
    byId("forget-key").hidden = ApiKey.get() === "";
    const select = byId("model");
    const chosen = select.value;
    select.replaceChildren(...data.map((model) => make("option", {value: model.id}, model.id)));
    if (data.some((model) => model.id === chosen)) select.value = chosen;
    select.disabled = data.length < 2;
    Chat.setModel(select.value);
    return true;
  } catch (error) {
    if (error.status === 401) {
      const hadKey = ApiKey.get() !== "";
      ApiKey.set("");
      askForKey(hadKey ? "This key was refused." : "");
    }
    return false;
  }
}

byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  ApiKey.set(byId("key").value.trim());
  if (await loadModels()) {
    byId("key").value = "";
    byId("key-dialog").close();
    byId("draft").focus();
    showCurl();
  }
});
byId("forget-key").addEventListener("click", () => {
  ApiKey.set("");
  byId("forget-key").hidden = true;
  showCurl();
  loadModels();
});
byId("model").addEventListener("change", () => Chat.setModel(byId("model").value));

// ---- the curl of the current request ----

function showCurl() {
  const {path, body, what} = Chat.currentRequest();
  setText(byId("curl-what"), what);
  setText(byId("curl"), Curl.command(location.origin, path, body, ApiKey.get() !== ""));
}
const copyCurl = () => copyText(byId("curl").textContent, byId("copy-curl"));
byId("copy-curl").addEventListener("click", copyCurl);
Chat.onrequest = showCurl;
Sampling.onchange = showCurl;

// ---- views of a narrow screen; a wide one shows them all ----

function showView(name) {
  document.documentElement.dataset.view = name;
  for (const button of document.querySelectorAll(".views button")) {
    if (button.dataset.view === name)
      button.setAttribute("aria-current", "true");
    else
      button.removeAttribute("aria-current");
  }
}
for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => showView(button.dataset.view));
}

// ---- light and dark ----

const Theme = (() => {
  const NAMES = ["auto", "light", "dark"];
  const STORE = "attest.theme";
  let name = "auto";
  function set(next) {
    name = NAMES.includes(next) ? next : "auto";
    if (name === "auto")
      delete document.documentElement.dataset.theme;
    else
      document.documentElement.dataset.theme = name;
    setText(byId("theme"), `Theme: ${name}`);
    try {
      localStorage.setItem(STORE, name);
    } catch { /* no storage: it lasts as long as the page */
    }
  }
  let stored = null;
  try {
    stored = localStorage.getItem(STORE);
  } catch { /* as above */
  }
  set(stored);
  byId("theme").addEventListener("click", () => set(NAMES[(NAMES.indexOf(name) + 1) % NAMES.length]));
  return {set};
})();

// ---- the keyboard ----

const showHelp = () => byId("help").open || byId("help").showModal();
byId("show-help").addEventListener("click", showHelp);

const ALT_KEYS = {
  KeyN: () => Chat.clear(),
  KeyR: () => Chat.regenerate(),
  KeyT: () => Chat.toggleTokens(),
  KeyA: () => {
    showView("chat");
    Chat.focusAnswer();
  },
  KeyS: () => {
    showView("sampling");
    Sampling.focus();
  },
  KeyC: copyCurl,
};
addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  const isTyping = event.target.matches("input:not([type=range]), textarea, select");
  if (event.key === "Escape") {
    if (Chat.isRunning())
      Chat.stop();
    else if (TokenPopover.isShown())
      TokenPopover.hide();
    else {
      showView("chat");
      byId("draft").focus();
    }
  } else if (event.altKey && !event.ctrlKey && !event.metaKey && ALT_KEYS[event.code]) {
    event.preventDefault();
    ALT_KEYS[event.code]();
  } else if ((event.key === "?" && !isTyping) || (event.key === "/" && event.ctrlKey)) {
    event.preventDefault();
    showHelp();
  } else if (event.key === "/" && !isTyping) {
    event.preventDefault();
    showView("chat");
    byId("draft").focus();
  }
});

// ---- start ----

for (const text
         of ["What is the capital of France?", "Write a haiku about memory.",
             "Explain a hash table in three short points.", "Write a Python function that reverses a list."]) {
  byId("examples").append(make("li", {}, make("button", {type: "button", onclick: () => Chat.send(text)}, text)));
}
EngineView.onstate = (state, words) => {
  byId("status").dataset.state = state;
  byId("engine").dataset.state = state;
  setText(byId("status-text"), words);
  byId("status").title = words;  // there may be no room for all of them
};
EngineView.onfound = (now) => {  // also when the server is back: it may be another one
  Sampling.setDefaults(now.default_sampling);
  Chat.setLimits(now.model.max_model_len, now.model.chat_template);
  if (byId("model").value === "") {
    byId("model").replaceChildren(make("option", {}, now.model.id));
    Chat.setModel(now.model.id);
  }
  loadModels();
};
EngineView.start();
Chat.restore();
showCurl();
if (matchMedia("(pointer: fine)").matches) byId("draft").focus();  // else a screen keyboard would cover the page
