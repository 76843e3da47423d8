"use strict";
// A model's Markdown as elements. It is hostile: HTML in it is shown as text, pictures are links, and what comes of that is sanitised.

const escaped = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

const markdown = new marked.Marked({
  renderer: {
    html({ text, block }) {
      if (/^<br\s*\/?>$/i.test(text.trim())) return "<br>";
      return block ? `<pre><code>${escaped(text)}</code></pre>` : escaped(text);
    },
    image({ href, text }) { return `<a href="${escaped(href)}">${escaped(text || href)}</a>`; },
    checkbox({ checked }) { return `<span>${checked ? "☑" : "☐"} </span>`; },
  },
});

const ALLOWED = {
  ALLOWED_TAGS: ("a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre span strong table tbody td th thead tr ul").split(" "),
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "start"], // which are no addresses
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "CODE") node.removeAttribute("class"); // of code it is the language
  if (node.tagName === "A" && node.href) {
    node.target = "_blank";
    node.rel = "noopener noreferrer";
  }
});

function make(kind, parent, name = "", text = "") {
  const made = document.createElement(kind);
  if (name) made.className = name;
  made.textContent = text;
  parent.append(made);
  return made;
}

function button(parent, label, work) {
  const made = make("button", parent, "quiet", label);
  made.type = "button";
  made.onclick = () => work(made);
  return made;
}

async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // over HTTP from another machine there is no such clipboard
    const field = make("textarea", document.body, "unseen", text);
    field.select();
    document.execCommand("copy");
    field.remove();
    from.focus();
  }
  from.textContent = "Copied";
  setTimeout(() => { from.textContent = "Copy"; }, 1500);
}

// A text's blocks, and the HTML of one; of what nests deeper than a script may call itself, the text as it was written.
const plain = (raw) => ({ type: "code", raw, text: raw });
const lexed = (text) => { try { return markdown.lexer(text); } catch { return [plain(text)]; } };
const parsed = (token) => { try { return markdown.parser([token]); } catch { return markdown.parser([plain(token.raw)]); } };

// An answer that grows: only blocks that changed are made again, so that what is selected stays so.
class MarkdownView {
  constructor(parent) {
    this.parent = parent;
    this.blocks = [];
  }

  // runs: [[length, source], ...] of the text. isWhole: nothing will follow.
  show(text, runs, isWhole) {
    const tokens = lexed(text);
    let start = 0;
    for (const [number, token] of tokens.entries()) {
      start = Math.max(start, text.indexOf(token.raw, start));
      const shown = this.blocks[number];
      if (isWhole || shown?.raw !== token.raw) {
        const element = document.createElement("div");
        element.append(DOMPurify.sanitize(parsed(token), ALLOWED));
        tintBlock(element, text, start, start + token.raw.length, runs);
        frameBlocks(element);
        if (shown) shown.element.replaceWith(element);
        else this.parent.append(element);
        this.blocks[number] = { raw: token.raw, element };
      }
      start += token.raw.length;
    }
    for (const { element } of this.blocks.splice(tokens.length)) element.remove();
  }
}

// Puts code into figures with a button that copies it, and wide tables into frames that scroll.
function frameBlocks(element) {
  for (const pre of element.querySelectorAll("pre")) {
    const figure = document.createElement("figure");
    figure.className = "code";
    pre.replaceWith(figure);
    const caption = make("figcaption", figure);
    make("span", caption, "", pre.firstElementChild?.className.replace("language-", ""));
    button(caption, "Copy", (from) => copy(pre.textContent, from)).setAttribute("aria-label", "Copy code");
    pre.tabIndex = 0;
    figure.append(pre);
  }
  for (const code of element.querySelectorAll("code")) code.removeAttribute("class");
  for (const table of element.querySelectorAll("table")) {
    const frame = document.createElement("div");
    frame.className = "table";
    frame.tabIndex = 0;
    table.replaceWith(frame);
    frame.append(table);
  }
}

const sourcesSeen = ["context", "history", "logits", "datastore"];

function tintOf(source) {
  if (!sourcesSeen.includes(source)) sourcesSeen.push(source);
  const name = `tint t${sourcesSeen.indexOf(source) % 6}`;
  const legend = document.getElementById("legend");
  if (![...legend.children].some((each) => each.textContent === source)) make("span", legend, name, source);
  return name;
}

// Finds each line that is shown in what the model wrote, from start to end of text, and tints its drafted tokens.
function tintBlock(element, text, start, end, runs) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  for (const node of nodes) {
    const made = document.createDocumentFragment();
    for (const line of node.data.split(/(?<=\n)/)) {
      const at = line.trim() ? text.indexOf(line.trimEnd(), start) : -1;
      if (at < 0 || at >= end) {
        made.append(line);
        continue;
      }
      start = at + line.trimEnd().length;
      let rest = line;
      for (const [length, source] of runsWithin(runs, at, start)) {
        if (source) make("span", made, tintOf(source), rest.slice(0, length)).title = `drafted from: ${source}`;
        else made.append(rest.slice(0, length));
        rest = rest.slice(length);
      }
      made.append(rest);
    }
    node.replaceWith(made);
  }
}

function* runsWithin(runs, start, end) {
  let at = 0;
  for (const [length, source] of runs) {
    const overlap = Math.min(at + length, end) - Math.max(at, start);
    if (overlap > 0) yield [overlap, source];
    at += length;
    if (at >= end) return;
  }
}
