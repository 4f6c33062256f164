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
const MOST = 4 << 20;

// What an agent prints may hold links: they lead nowhere.
const terminal = new Terminal({ linkHandler: { activate() {} }, scrollback: 2000, screenReaderMode: true });
terminal.open(place);

let attachment = "";
let writes = false;
let leaving = null;

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
  if (event.key !== "Escape" || !event.ctrlKey || !event.shiftKey) return true;
  document.querySelector("[data-mode]").focus();
  return false;
});

function frame(kind, payload) {
  const text = () => new TextDecoder().decode(payload);
  if (kind === "A") attachment = text();
  else if (kind === "H") {
    const hello = JSON.parse(text());
    writes = hello.mode === "write";
    state.textContent = writes ? "attached, you write" : "attached, you watch";
    terminal.options.disableStdin = !writes;
    terminal.options.convertEol = !hello.terminal;
    if (writes) {
      const [rows, columns] = fitted();
      terminal.resize(columns, rows);
      typed.push([rows, columns]);
      void send();
      terminal.focus();
    }
  } else if (kind === "O" || kind === "R") terminal.write(payload);
  else if (kind === "X") state.textContent = "the session is over";
  else if (kind === "E") state.textContent = JSON.parse(text()).message;
}

async function attach(mode) {
  leaving?.abort();
  leaving = new AbortController();
  const own = leaving;
  terminal.reset();
  attachment = "";
  writes = false;
  const body = new URLSearchParams({ mode: mode === "read" ? "read" : "write", take: mode === "take" ? "1" : "" });
  try {
    const options = { method: "POST", headers: { "x-csrf": token }, body, signal: own.signal };
    const answer = await fetch(place.dataset.address, options);
    if (!answer.ok) {
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      state.textContent = found.getElementById("said")?.textContent.trim() ?? "refused";
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
        frame(String.fromCharCode(waiting[0]), waiting.slice(5, 5 + length));
        waiting = waiting.slice(5 + length);
      }
    }
    if (own === leaving && state.textContent.startsWith("attached")) state.textContent = "not attached";
  } catch (error) {
    if (own === leaving) state.textContent = `not attached: ${error.message}`;
  }
  if (own === leaving) writes = false;
}

for (const button of document.querySelectorAll("[data-mode]")) {
  button.addEventListener("click", () => {
    if (!button.dataset.confirm || window.confirm(button.dataset.confirm)) void attach(button.dataset.mode);
  });
}
window.addEventListener("pagehide", () => leaving?.abort());
void attach("read");
