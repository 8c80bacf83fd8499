// Markdown as models write it, into DOM nodes: headings, paragraphs, lists, quotes, rules, tables, code, bold, italic.
// Every character of the source goes through `emit(parent, begin, end)`, which makes text nodes of that range, so
// nothing a model says can become markup, and a caller may wrap tokens. Links and images stay the text they are.
"use strict";

const Markdown = (() => {
  const FENCE = /^(\s*)(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
  const HEADING = /^ {0,3}(#{1,6})\s+\S/;
  const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
  const QUOTE = /^ {0,3}> ?/;
  const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+/;
  const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
  const MAX_DEPTH = 8;  // of emphasis in emphasis

  // [{begin, end, text}], line ends left out.
  function linesOf(text) {
    const lines = [];
    for (let begin = 0; begin <= text.length;) {
      let end = text.indexOf("\n", begin);
      if (end < 0) end = text.length;
      lines.push({begin, end, text: text.slice(begin, end)});
      begin = end + 1;
    }
    return lines;
  }

  const isTable = (lines, i) => lines[i].text.includes("|") && i + 1 < lines.length &&
      lines[i + 1].text.includes("-") && lines[i + 1].text.includes("|") && TABLE_RULE.test(lines[i + 1].text);
  const startsBlock = (lines, i) => {
    const text = lines[i].text;
    return FENCE.test(text) || HEADING.test(text) || RULE.test(text) || QUOTE.test(text) || ITEM.test(text) ||
        isTable(lines, i);
  };

  // [{kind, begin, end, lines, ...}]: where each block of the text lies.
  function blocksOf(text) {
    const lines = linesOf(text);
    const blocks = [];
    for (let i = 0; i < lines.length;) {
      const line = lines[i];
      if (line.text.trim() === "") {
        ++i;
        continue;
      }
      const first = i;
      let kind = "paragraph", extra = {};
      const fence = FENCE.exec(line.text);
      if (fence) {
        kind = "code";
        const isEnd = (t) => t.trim().startsWith(fence[2]) && t.trim().replace(/[`~]/g, "") === "";
        for (++i; i < lines.length && !isEnd(lines[i].text);) ++i;
        extra = {indent: fence[1].length, language: fence[3], body: lines.slice(first + 1, i)};
        if (i < lines.length) ++i;
      } else if (HEADING.test(line.text)) {
        kind = "heading";
        ++i;
      } else if (RULE.test(line.text)) {
        kind = "rule";
        ++i;
      } else if (QUOTE.test(line.text)) {
        kind = "quote";
        while (i < lines.length && QUOTE.test(lines[i].text)) ++i;
      } else if (ITEM.test(line.text)) {
        kind = "list";
        for (++i; i < lines.length; ++i) {  // items, what is indented under them, and one empty line between
          const t = lines[i].text;
          if (ITEM.test(t) && !RULE.test(t)) continue;
          if (t.trim() === "") {
            if (i + 1 < lines.length && ITEM.test(lines[i + 1].text)) continue;
            break;
          }
          if (startsBlock(lines, i)) break;
        }
      } else if (isTable(lines, i)) {
        kind = "table";
        while (i < lines.length && lines[i].text.includes("|")) ++i;
      } else {
        for (++i; i < lines.length && lines[i].text.trim() !== "" && !startsBlock(lines, i);) ++i;
      }
      blocks.push({kind, begin: line.begin, end: lines[i - 1].end, lines: lines.slice(first, i), ...extra});
    }
    return blocks;
  }

  // Emphasis and code of text[begin, end).
  function inline(out, parent, begin, end, depth = 0) {
    const {text, emit} = out;
    const exhausted = {};  // delimiters that close nowhere behind here: what keeps this linear
    let plain = begin;
    const flush = (to) => {
      if (plain < to) emit(parent, plain, to);
    };
    const closing = (delimiter, from) => {
      if (exhausted[delimiter]) return -1;
      for (let at = text.indexOf(delimiter, from); at >= 0 && at + delimiter.length <= end;
           at = text.indexOf(delimiter, at + 1)) {
        const after = text[at + delimiter.length] ?? " ";
        if (/\s/.test(text[at - 1])) continue;
        if (delimiter[0] === "_" && /[\p{L}\p{N}]/u.test(after)) continue;
        if (delimiter.length === 1 && (after === delimiter || text[at - 1] === delimiter)) continue;
        return at;
      }
      exhausted[delimiter] = true;
      return -1;
    };
    for (let i = begin; i < end;) {
      const c = text[i];
      if (c === "\\" && i + 1 < end && /[!-/:-@[-`{-~]/.test(text[i + 1])) {
        flush(i);
        plain = i + 1;
        i += 2;
      } else if (c === "`") {
        let run = 1;
        while (i + run < end && text[i + run] === "`") ++run;
        const close = closing("`".repeat(run), i + run);
        if (close >= 0) {
          flush(i);
          const code = make("code");
          emit(code, i + run, close);
          parent.append(code);
          plain = i = close + run;
        } else {
          i += run;
        }
      } else if ((c === "*" || c === "_") && depth < MAX_DEPTH) {
        const width = text[i + 1] === c && i + 1 < end ? 2 : 1;
        const next = text[i + width] ?? " ";
        const opens = i + width < end && !/\s/.test(next) && next !== c &&
            !(c === "_" && i > begin && /[\p{L}\p{N}]/u.test(text[i - 1]));
        const close = opens ? closing(c.repeat(width), i + width + 1) : -1;
        if (close >= 0) {
          flush(i);
          const node = make(width === 2 ? "strong" : "em");
          inline(out, node, i + width, close, depth + 1);
          parent.append(node);
          plain = i = close + width;
        } else {
          i += width;
        }
      } else {
        ++i;
      }
    }
    flush(end);
  }

  function renderCode(out, block) {
    const code = make("code");
    block.body.forEach((line, i) => {
      const strip = Math.min(block.indent, line.text.length - line.text.trimStart().length);
      const isLast = i + 1 === block.body.length;
      out.emit(code, line.begin + strip, isLast ? line.end : line.end + 1);
    });
    const copy = make("button", {type: "button", class: "quiet"}, "Copy code");
    copy.addEventListener("click", () => copyText(code.textContent, copy));
    return make(
        "div", {class: "code"}, make("div", {class: "code-head"}, make("span", {}, block.language || "code"), copy),
        make("pre", {tabindex: "0", role: "region", "aria-label": `Code, ${block.language || "no language"}`}, code));
  }

  function renderList(out, block) {
    const items = [];  // {depth, ordered, number, begin, end}
    for (const line of block.lines) {
      const match = ITEM.exec(line.text);
      if (match) {
        items.push({
          depth: match[1].replace(/\t/g, "    ").length,
          ordered: /\d/.test(match[2]),
          number: parseInt(match[2], 10),
          begin: line.begin + match[0].length,
          end: line.end
        });
      } else {
        items[items.length - 1].end = Math.max(items[items.length - 1].end, line.end);
      }
    }
    const makeList = (item) =>
        item.ordered ? make("ol", {start: item.number === 1 ? undefined : item.number}) : make("ul");
    const root = makeList(items[0]);
    const open = [{depth: items[0].depth, list: root, item: null}];
    for (const item of items) {
      while (open.length > 1 && item.depth < open[open.length - 1].depth) open.pop();
      let level = open[open.length - 1];
      if (level.item && item.depth > level.depth + 1 && open.length < MAX_DEPTH) {
        level = {depth: item.depth, list: makeList(item), item: null};
        open[open.length - 1].item.append(level.list);
        open.push(level);
      }
      level.item = make("li");
      inline(out, level.item, item.begin, item.end);
      level.list.append(level.item);
    }
    return root;
  }

  function renderTable(out, block) {
    const row = (line, tag) => {
      const tr = make("tr");
      let begin = line.begin, end = line.end;
      while (begin < end && /[\s|]/.test(out.text[begin])) {
        if (out.text[begin++] === "|") break;
      }
      while (end > begin && /\s/.test(out.text[end - 1])) --end;
      if (out.text[end - 1] === "|") --end;
      for (let at = begin; at <= end;) {
        let bar = out.text.indexOf("|", at);
        if (bar < 0 || bar > end) bar = end;
        let a = at, b = bar;
        while (a < b && /\s/.test(out.text[a])) ++a;
        while (b > a && /\s/.test(out.text[b - 1])) --b;
        const cell = make(tag, tag === "th" ? {scope: "col"} : {});
        inline(out, cell, a, b);
        tr.append(cell);
        at = bar + 1;
      }
      return tr;
    };
    return make(
        "div", {class: "table", tabindex: "0", role: "region", "aria-label": "Table"},
        make(
            "table", {}, make("thead", {}, row(block.lines[0], "th")),
            make("tbody", {}, ...block.lines.slice(2).map((line) => row(line, "td")))));
  }

  function renderBlock(out, block) {
    switch (block.kind) {
      case "code":
        return renderCode(out, block);
      case "list":
        return renderList(out, block);
      case "table":
        return renderTable(out, block);
      case "rule":
        return make("hr");
      case "heading": {
        const marks = HEADING.exec(block.lines[0].text)[1].length;
        const text = block.lines[0].text;
        // Under the page's own headings, which end with the turn's h3.
        const node = make(`h${Math.min(6, marks + 3)}`);
        inline(
            out, node, block.begin + text.indexOf("#") + marks + /^#+(\s*)/.exec(text.trimStart())[1].length,
            block.end);
        return node;
      }
      case "quote": {
        const quote = make("blockquote");
        for (const line of block.lines) {
          const p = make("p");
          inline(out, p, line.begin + QUOTE.exec(line.text)[0].length, line.end);
          quote.append(p);
        }
        return quote;
      }
      default: {
        const p = make("p");
        inline(out, p, block.begin, block.end);
        return p;
      }
    }
  }

  // Shows a text that grows: blocks that have not changed keep their nodes.
  class View {
    constructor(parent) {
      this.parent = parent;
      this.shown = [];  // {kind, begin, end, node}; the last one may still grow
    }
    clear() {
      this.parent.replaceChildren();
      this.shown = [];
    }
    update(text, emit) {
      const out = {text, emit};
      const blocks = blocksOf(text);
      let keep = 0;
      while (keep < blocks.length && keep + 1 < this.shown.length && this.shown[keep].kind === blocks[keep].kind &&
             this.shown[keep].begin === blocks[keep].begin && this.shown[keep].end === blocks[keep].end)
        ++keep;
      for (const old of this.shown.splice(keep)) old.node.remove();
      for (const block of blocks.slice(keep)) {
        const node = renderBlock(out, block);
        this.parent.append(node);
        this.shown.push({kind: block.kind, begin: block.begin, end: block.end, node});
      }
    }
  }

  return {View, blocksOf};
})();
