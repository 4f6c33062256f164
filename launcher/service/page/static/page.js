// What moves: fragments take the place of elements with their ids, and forms are sent without leaving the page.
// Everything works without this file, but for what moves. Nothing here makes markup of its own.

const token = document.querySelector('meta[name="csrf"]')?.content ?? "";

function replace(id, html) {
  const before = document.getElementById(id);
  if (!before) return;
  const holder = document.createElement("template");
  holder.innerHTML = html;
  const after = holder.content.firstElementChild;
  if (!after) return;
  // Who is writing into a form of it, or has opened something in it, keeps it for now.
  const active = document.activeElement;
  if (before.contains(active) && active.matches("input:not([type=hidden]), select, textarea")) return;
  const focused = before.contains(active) ? active.id : "";
  for (const open of before.querySelectorAll("details[open][id]")) {
    after.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
  }
  const atEnd = before.scrollTop + before.clientHeight >= before.scrollHeight - 4;
  const top = before.scrollTop;
  before.replaceWith(after);
  after.scrollTop = after.matches("[data-tail]") && atEnd ? after.scrollHeight : top;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  after.dispatchEvent(new CustomEvent("replaced", { bubbles: true }));
}

for (const each of document.querySelectorAll("[data-tail]")) each.scrollTop = each.scrollHeight;

// One stream for each tab, and none for a tab that nobody sees: browsers open few connections to one address.

let source = null;

function follow() {
  const address = document.body.dataset.live;
  const wanted = address && (!document.hidden || document.body.dataset.notify === "on");
  if (!wanted) {
    source?.close();
    source = null;
  } else if (!source || source.readyState === EventSource.CLOSED) {
    source = new EventSource(address);
    source.onmessage = (event) => {
      const { id, html } = JSON.parse(event.data);
      replace(id, html);
    };
    source.addEventListener("gone", () => source.close());
    source.addEventListener("note", (event) => note(JSON.parse(event.data)));
    source.onopen = () => document.body.classList.remove("broken");
    source.onerror = () => document.body.classList.add("broken");
  }
}

// Notes: said on the page, and by the browser where the user has asked for that.

const bell = document.getElementById("notify");
const wished = () => localStorage.getItem("notify") === "on" && window.Notification?.permission === "granted";

function note({ number, title, text, address }) {
  const place = document.getElementById("notes");
  const link = document.createElement("a");
  link.href = address;
  link.textContent = `${title}: ${text}`;
  place?.replaceChildren(link);
  if (!wished()) return;
  const shown = new Notification(`Paddock: ${title}`, { body: text, tag: `paddock-${number}` });
  shown.onclick = () => {
    window.focus();
    location.assign(address);
  };
}

function ring() {
  if (!bell) return;
  bell.hidden = !window.Notification;
  bell.setAttribute("aria-pressed", String(wished()));
  document.body.dataset.notify = wished() ? "on" : "";
}

bell?.addEventListener("click", async () => {
  const on = !wished() && (await Notification.requestPermission()) === "granted";
  localStorage.setItem("notify", on ? "on" : "");
  ring();
  follow();
});

ring();
document.addEventListener("visibilitychange", follow);
follow();

// Forms and links with data-swap="ID" put the answer's element of that id in the place of this page's.

async function swap(target, address, options) {
  const answer = await fetch(address, { ...options, headers: { "x-csrf": token, ...options.headers } });
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
  const after = found.getElementById(target) ?? found.getElementById("said");
  if (after) replace(found.getElementById(target) ? target : "said", after.outerHTML);
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  const button = event.submitter;
  const question = button?.dataset.confirm ?? form.dataset.confirm;
  if (question && !window.confirm(question)) {
    event.preventDefault();
    return;
  }
  if (!form.dataset.swap) return;
  event.preventDefault();
  const fields = new URLSearchParams(new FormData(form, button));
  const post = form.method === "post";
  const address = post ? form.action : `${form.action}?${fields}`;
  void swap(form.dataset.swap, address, post ? { method: "POST", body: fields } : {});
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-swap]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    void swap(link.dataset.swap, link.href, {});
  }
  const copied = event.target.closest("button[data-copy]");
  if (copied) {
    void navigator.clipboard.writeText(copied.dataset.copy).then(() => {
      copied.textContent = "copied";
    });
  }
});
