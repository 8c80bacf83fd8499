// Small helpers over the DOM. What comes from a model or a server becomes text nodes, never markup.
"use strict";

const byId = (id) => document.getElementById(id);

// make("p", {class: "note", "data-x": 1, onclick: f, hidden: true}, "text", node, ...)
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false || value === null) continue;
    if (name.startsWith("on"))
      element.addEventListener(name.slice(2), value);
    else
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Writes only what changed: a live view must not disturb a selection or a screen reader each second.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const numberFormat = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const formatCount = (value) => numberFormat.format(value);
const shortFormat = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 2});
const formatShort = (value) => shortFormat.format(value);
const formatRate = (value) => (value >= 100 ? formatCount(value) : value.toFixed(1));
function formatPercent(share) {
  if (share <= 0) return "0 %";
  if (share < 0.00005) return "< 0.01 %";
  if (share < 0.0995) return `${(share * 100).toFixed(2)} %`;
  return share < 0.9995 ? `${(share * 100).toFixed(1)} %` : "100 %";
}
const formatSeconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

function formatDuration(seconds) {
  if (seconds < 90) return `${Math.floor(seconds)} s`;
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

// Spaces and line ends, made visible.
const visibleText = (text) =>
    text.replace(/ /g, "\u00b7").replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/\r/g, "\u240d") || "\u2205";

// A token as a screen reader can say it. The blank before a word is part of nearly every one and goes without saying; a
// mark that stands alone would be passed over in silence.
const SPOKEN_NAMES = new Map([
  ["\n", "line end"], ["\t", "tab"], ["\r", "carriage return"], [".", "full stop"], [",", "comma"], [":", "colon"],
  [";", "semicolon"], ["!", "exclamation mark"], ["?", "question mark"], ["-", "hyphen"], ["'", "apostrophe"],
  ["\"", "quote"], ["(", "left bracket"], [")", "right bracket"], ["*", "star"], ["`", "backtick"]
]);
function spokenText(text) {
  const word = text.replace(/^ (?=\S)/, "");
  const named = SPOKEN_NAMES.get(word) ?? word.replace(/[\n\t\r]/g, (c) => ` ${SPOKEN_NAMES.get(c)} `).trim();
  return named || (text === "" ? "no text" : text.length === 1 ? "blank" : `${text.length} blanks`);
}

async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {  // a page over plain http from another machine has no clipboard
    const area = make("textarea", {class: "sr", "aria-hidden": "true"});
    area.value = text;
    document.body.append(area);
    area.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Not allowed";
    area.remove();
    button.focus();
  }
  announce(button.textContent);  // by a shortcut the button may be out of sight
  setTimeout(() => {
    button.textContent = label;
  }, 1200);
}
