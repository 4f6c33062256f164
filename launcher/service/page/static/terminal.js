// A session's terminal: frames of a letter, four bytes of length and a payload, as launcher/wire.py has them.

// The page's policy allows no style in the document, and xterm.js writes some there: it gets style sheets of its own
// in their place, which scripts may make (CSSOM).
const make = document.createElement;
document.createElement = function (name, ...more) {
  if (name !== "style") return make.call(this, name, ...more);
  const sheet = new CSSStyleSheet();
  const element = make.call(this, "template");
  Object.defineProperty(element, "textContent", { set: (text) => sheet.replaceSync(text), get: () => "" });
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  return element;
};
const set = Element.prototype.setAttribute;
Element.prototype.setAttribute = function (name, value) {
  if (name === "style") this.style.cssText = value;
  else set.call(this, name, value);
};

const { Terminal } = await import("./xterm/xterm.js");
const token = document.querySelector('meta[name="csrf"]').content;
const place = document.getElementById("terminal");
const state = document.getElementById("terminal-state");
const buttons = [...document.querySelectorAll("[data-mode]")];
const MOST = 4 << 20;
const ANOTHER = ": another client writes";

// What an agent prints may hold links: they lead nowhere.
const terminal = new Terminal({ linkHandler: { activate() {} }, scrollback: 2000, screenReaderMode: true });
terminal.open(place);

// Of an agent's, too: a number up to 2^31, and each scroll, each blank, each repetition is a step that xterm takes.
// More than a screen has of them does nothing. Other numbers that large are the cursor's way to the edge, "9999;9999H".
const STEPS = ["@", " @", " A", "I", "L", "M", "P", "S", "T", "X", "Z", "b", "'}", "'~"];
const EDGES = [..."ABCDEFGHadef`"];
for (let code = 0x40; code <= 0x7e; code++) {
  const final = String.fromCharCode(code);
  for (const intermediates of ["", " ", "!", '"', "#", "$", "'", "*"]) {
    const most = STEPS.includes(intermediates + final) ? 1000 : 10000;
    const isAbsurd = (parameters) => parameters.flat().some((each) => each > most);
    for (const prefix of EDGES.includes(intermediates + final) ? [] : ["", "<", "=", ">", "?"]) {
      terminal.parser.registerCsiHandler({ prefix, intermediates, final }, isAbsurd);
    }
  }
}

// Nobody sees these, and some turn the direction of writing: a person must see all that is written. policy/errors.py has
// the same, but for U+200D, which joins signs to one, U+200C, which some scripts need, and what shapes the sign before.
const UNSEEN =
  "\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f" +
  "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\u{110bd}\u{110cd}" +
  "\u{13430}-\u{1343f}\u{13441}\u{13442}\u{16fe4}\u{1bca0}-\u{1bca3}\u{1d159}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}";
const MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f";
const SHAPES = "(?<!\\p{Extended_Pictographic})[\ufe0e\ufe0f](?!\u20e3)";
const INVISIBLE = new RegExp(`[${UNSEEN}]|${SHAPES}|[${MARKS}]{3,}`, "gu");
const PIECE = 4096;
let decoders = {};

function show(kind, payload, done) {
  decoders[kind] ??= new TextDecoder("utf-8", { ignoreBOM: true });
  const text = decoders[kind].decode(payload, { stream: true }).replace(INVISIBLE, "\ufffd");
  // In pieces, between which xterm lets the tab do something else.
  for (let at = 0; at < text.length; at += PIECE) terminal.write(text.slice(at, at + PIECE));
  if (done) terminal.write("", done);
}

let attachment = "";
let why = "";
let writes = false;
let history = 0;
let leaving = null;

function mark(mode) {
  writes = mode === "write";
  for (const button of buttons) {
    if (button.dataset.mode === "take") button.hidden = writes;
    else button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
  }
}

function fitted() {
  const cell = place.querySelector(".xterm-screen");
  const width = cell.clientWidth / terminal.cols;
  const height = cell.clientHeight / terminal.rows;
  const columns = Math.max(20, Math.min(300, Math.floor((place.clientWidth - 16) / width)));
  return [Math.max(10, Math.min(60, Math.floor((window.innerHeight * 0.75) / height))), columns];
}

// Keys in their order: one request at a time, what comes meanwhile goes with the next.
let typed = [];
let sending = false;

async function send() {
  if (sending) return;
  sending = true;
  while (typed.length && attachment) {
    const pieces = typed.splice(0);
    const address = new URL(`/attachments/${attachment}`, location.href);
    const size = pieces.filter((each) => Array.isArray(each)).pop();
    if (size) [["rows", size[0]], ["columns", size[1]]].forEach(([name, value]) => address.searchParams.set(name, value));
    const text = new TextEncoder().encode(pieces.filter((each) => !Array.isArray(each)).join(""));
    for (let at = 0; at === 0 || at < text.length; at += 16384) {
      const body = text.slice(at, at + 16384);
      const answer = await fetch(address, { method: "POST", headers: { "x-csrf": token }, body });
      if (!answer.ok) state.textContent = "what was typed was refused";
    }
  }
  sending = false;
}

terminal.onData((data) => {
  if (!writes) return;
  typed.push(data);
  void send();
});
terminal.onResize(({ rows, cols }) => {
  if (!writes) return;
  typed.push([rows, cols]);
  void send();
});
window.addEventListener("resize", () => writes && terminal.resize(fitted()[1], fitted()[0]));
terminal.attachCustomKeyEventHandler((event) => {
  if (event.key === "Escape" && event.ctrlKey && event.shiftKey) {
    buttons[0].focus();
    return false;
  }
  if (writes) return true;
  const types = event.key.length === 1 || ["Enter", "Backspace", "Delete"].includes(event.key);
  if (event.type === "keydown" && types && attachment && !event.ctrlKey && !event.metaKey && !event.altKey) {
    state.textContent = place.dataset.writes ? 'attached, you watch: to type, choose "write"' : "attached, you can only watch";
  }
  return event.key !== "Tab";
});

// The history that a session is joined with holds what its programmes once asked the terminal. Nobody waits for the
// answers any more, and whatever reads now would take them for what the user types: until the history is shown,
// nothing is sent.
function live(own) {
  if (own !== leaving || !attachment) return;
  terminal.options.disableStdin = !writes;
  if (!writes) return;
  const [rows, columns] = fitted();
  terminal.resize(columns, rows);
  typed.push([rows, columns]);
  void send();
  terminal.focus();
}

function frame(kind, payload, own) {
  const text = () => new TextDecoder().decode(payload);
  if (kind === "A") attachment = text();
  else if (kind === "H") {
    const hello = JSON.parse(text());
    mark(hello.mode);
    state.textContent = writes ? "attached, you write" : `attached, you watch${why}`;
    terminal.options.convertEol = !hello.terminal;
    history = hello.history ?? 0;
    if (history <= 0) terminal.write("", () => live(own));
  } else if (kind === "O" || kind === "R") {
    const ends = history > 0 && history <= payload.length;
    history -= payload.length;
    show(kind, payload, ends ? () => live(own) : null);
  } else if (kind === "X") over();
  else if (kind === "E") {
    const refusal = JSON.parse(text());
    // Somebody else has taken over: this one goes on watching.
    if (refusal.errorType === "session-has-writer") void attach("read", ANOTHER);
    else state.textContent = refusal.message;
  }
}

function over() {
  leaving = null;
  attachment = "";
  mark("");
  state.textContent = "the session is over";
  for (const button of buttons) button.hidden = true;
  document.getElementById("terminal-over").hidden = false;
}

async function attach(mode, reason = mode === "open" ? ANOTHER : "") {
  leaving?.abort();
  leaving = new AbortController();
  const own = leaving;
  terminal.options.disableStdin = true;
  terminal.reset();
  decoders = {};
  attachment = "";
  why = reason;
  typed = [];
  mark("");
  const body = new URLSearchParams({ mode });
  try {
    const options = { method: "POST", headers: { "x-csrf": token }, body, signal: own.signal };
    const answer = await fetch(place.dataset.address, options);
    if (!answer.ok) {
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      const said = found.getElementById("said")?.textContent.trim() ?? "refused";
      if (said.includes("[session-over]")) over();
      else state.textContent = said;
      return;
    }
    const reader = answer.body.getReader();
    let waiting = new Uint8Array();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const all = new Uint8Array(waiting.length + value.length);
      all.set(waiting);
      all.set(value, waiting.length);
      waiting = all;
      while (waiting.length >= 5) {
        const length = new DataView(waiting.buffer, waiting.byteOffset).getUint32(1, true);
        if (length > MOST) throw new Error("a frame is too long");
        if (waiting.length < 5 + length) break;
        if (own !== leaving) return;
        frame(String.fromCharCode(waiting[0]), waiting.slice(5, 5 + length), own);
        waiting = waiting.slice(5 + length);
      }
    }
    if (own === leaving && state.textContent.startsWith("attached")) state.textContent = "not attached";
  } catch (error) {
    if (own === leaving) state.textContent = `not attached: ${error.message}`;
  }
  if (own !== leaving) return;
  attachment = "";
  mark("");
}

for (const button of buttons) {
  button.addEventListener("click", () => {
    if (button.getAttribute("aria-pressed") === "true") return;
    if (!button.dataset.confirm || window.confirm(button.dataset.confirm)) void attach(button.dataset.mode);
  });
}
window.addEventListener("pagehide", () => leaving?.abort());
void attach(place.dataset.writes ? "open" : "read");
