// The sampling controls. A control that is left empty sends nothing, and the model's own default, shown in it, holds.
// The server alone knows what a field may be: what it refuses is shown at the field it names.
"use strict";

const Sampling = (() => {
  const STORE = "attest.sampling";
  const FIELDS = [
    {name: "temperature", min: 0, max: 2, step: 0.05, help: "0 takes the likeliest token"},
    {name: "top_p", min: 0.05, max: 1, step: 0.01, help: "from the likeliest that together have this share"},
    {name: "top_k", min: 0, max: 200, step: 1, help: "from so many likeliest; 0 is off"},
    {name: "min_p", min: 0, max: 1, step: 0.01, help: "least share, relative to the likeliest"},
    {name: "typical_p", min: 0.05, max: 1, step: 0.01, help: "from the least surprising that have this share"},
    {name: "repetition_penalty", min: 0.5, max: 2, step: 0.01, help: "over 1 avoids what came before"},
    {name: "presence_penalty", min: -2, max: 2, step: 0.05, help: "on what the answer already holds"},
    {name: "frequency_penalty", min: -2, max: 2, step: 0.05, help: "on each time the answer holds it"},
    {name: "max_tokens", step: 1, help: "at most; empty: what fits"},
    {name: "seed", step: 1, help: "empty: a new one for each answer"},
  ];
  const form = byId("sampling");
  const inputs = new Map();   // name -> number input
  const sliders = new Map();  // name -> range input
  const notes = new Map();    // name -> where its help or its error stands
  let defaults = {};
  let onChange = () => {};

  function build() {
    for (const field of FIELDS) {
      const id = `p-${field.name}`;
      const input = make("input", {
        id,
        type: "number",
        step: "any",
        inputmode: "decimal",
        placeholder: "default",
        "aria-describedby": `${id}-note`
      });
      const note = make("p", {id: `${id}-note`, class: "note"}, field.help);
      inputs.set(field.name, input);
      notes.set(field.name, note);
      input.addEventListener("input", () => changed(field.name));
      input.addEventListener("keydown", (event) => {
        const direction = {ArrowUp: 1, ArrowDown: -1}[event.key];
        if (!direction || field.max === undefined) return;
        event.preventDefault();
        step(field, direction);
      });
      const row = make("div", {class: "field", title: field.help}, make("label", { for: id
                       }, field.name));
      if (field.max !== undefined) {
        const slider = make("input", {
          type: "range",
          min: field.min,
          max: field.max,
          step: field.step,
          tabindex: "-1",
          "aria-label": `${field.name}, slider`
        });
        slider.addEventListener("input", () => {
          input.value = slider.value;
          changed(field.name);
        });
        sliders.set(field.name, slider);
        row.append(slider);
      }
      row.append(input, note);
      form.append(row);
    }
    form.append(
        textField("stop", "stop", 2, "strings that end the answer, one a line"),
        textField("system", "system message", 3, "what the model is told first"));
  }

  // One step of the slider from what holds now: a number box alone would go by whole ones, from 0.
  function step(field, direction) {
    const input = inputs.get(field.name);
    const now = Number(input.value !== "" ? input.value : defaults[field.name] ?? field.min);
    const next = Math.max(field.min, Math.min(field.max, now + direction * field.step));
    input.value = String(Number(next.toFixed(6)));
    changed(field.name);
  }

  function textField(name, label, rows, help) {
    const id = `p-${name}`;
    const area = make("textarea", {id, rows, "aria-describedby": `${id}-note`});
    const note = make("p", {id: `${id}-note`, class: "note"}, help);
    inputs.set(name, area);
    notes.set(name, note);
    area.addEventListener("input", () => changed(name));
    return make("div", {class: "field wide"}, make("label", { for: id
                }, label), area, note);
  }

  const helpOf = (name) => FIELDS.find((field) => field.name === name)?.help ??
      {stop: "strings that end the answer, one a line", system: "what the model is told first"}[name];

  function showSlider(name) {
    const slider = sliders.get(name);
    if (!slider) return;
    const value = inputs.get(name).value;
    slider.value = value !== "" ? value : defaults[name] ?? slider.min;
    slider.classList.toggle("unset", value === "");
  }

  function clearError(name) {
    inputs.get(name).removeAttribute("aria-invalid");
    notes.get(name).classList.remove("error-text");
    setText(notes.get(name), helpOf(name));
  }

  function changed(name) {
    clearError(name);
    showSlider(name);
    save();
    onChange();
  }

  function save() {
    const values = {};
    for (const [name, input] of inputs)
      if (input.value !== "") values[name] = input.value;
    try {
      localStorage.setItem(STORE, JSON.stringify(values));
    } catch { /* no storage: the settings last as long as the page */
    }
  }

  function load() {
    let values = {};
    try {
      values = JSON.parse(localStorage.getItem(STORE) ?? "{}");
    } catch { /* no storage, or not ours */
    }
    for (const [name, input] of inputs)
      if (typeof values[name] === "string") input.value = values[name];
    for (const name of inputs.keys()) showSlider(name);
  }

  // What the model does where a request says nothing.
  function setDefaults(sampling) {
    defaults = sampling;
    for (const field of FIELDS) {
      const value = sampling[field.name];
      if (value !== undefined) inputs.get(field.name).placeholder = String(value);
    }
    inputs.get("max_tokens").placeholder = "what fits";
    inputs.get("seed").placeholder = "drawn";
    for (const name of inputs.keys()) showSlider(name);
  }

  // The fields of a request. `seed` is what an empty seed field means.
  function fields(seed) {
    const out = {};
    for (const {name} of FIELDS) {
      const text = inputs.get(name).value;
      if (text !== "") out[name] = Number(text);
    }
    out.seed ??= seed;
    const stop = inputs.get("stop").value.split("\n").filter((line) => line !== "");
    if (stop.length > 0) out.stop = stop;
    return out;
  }

  const systemMessage = () => inputs.get("system").value;
  const hasField = (name) => inputs.has(name);

  function showError(name, message) {
    const input = inputs.get(name);
    input.setAttribute("aria-invalid", "true");
    notes.get(name).classList.add("error-text");
    setText(notes.get(name), message);
  }

  function focus(name = "temperature") {
    inputs.get(name).focus();
    inputs.get(name).select?.();
  }

  function reset() {
    for (const [name, input] of inputs) {
      input.value = "";
      clearError(name);
      showSlider(name);
    }
    save();
    onChange();
  }

  build();
  load();
  form.addEventListener("submit", (event) => event.preventDefault());
  byId("reset-sampling").addEventListener("click", reset);
  return {
    fields,
    systemMessage,
    setDefaults,
    showError,
    hasField,
    focus,
    clearErrors: () => inputs.forEach((_, name) => clearError(name)),
    set onchange(callback) { onChange = callback; }
  };
})();
