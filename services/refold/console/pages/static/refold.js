// Pages work without this. It brings what has changed into the page that is open, dims what was not yet at an event,
// and adds keys. No framework, no state but the page's own.
"use strict";

// Where the gateway is on its host: "", or the prefix of a proxy.
const root = new URL(document.currentScript.src).pathname.split("/static/")[0];
const live = document.getElementById("live");
let paused = false;
let fresh = 0; // the latest page that was asked for
let tag = ""; // the page that is shown, as the gateway names it: asked for again, it is not sent again

const reachable = part => [...part.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, pre[tabindex]")];

// Replaces the parts of a page, by id, that differ from those of a page that was loaded just now. What is open stays
// open, what is being written stays written, and the focus stays.
function replaceParts(html, listed) {
  const page = new DOMParser().parseFromString(html, "text/html");
  const focused = document.activeElement, around = [];
  for (let each = focused; each; each = each.parentElement) if (each.id) around.push([each.id, each === focused ? -1 : reachable(each).indexOf(focused)]);
  const own = [page, document].flatMap(each => [...each.querySelectorAll("#run > [id]:not(:has(#rows, #travel))")].map(part => part.id));
  for (const id of new Set([...listed, ...own])) {
    const now = document.getElementById(id), then = page.getElementById(id);
    if (!now && then) insert(then);
    if (!now || writing(now)) continue;
    if (then && now.dataset.offers !== undefined && now.dataset.offers === then.dataset.offers) continue; // its votes are parts of their own
    if (!then && !(page.querySelector("[data-part]") && ROWS.includes(id))) now.remove();
    for (const each of now && then ? now.querySelectorAll("details[id]") : []) then.querySelector(`#${CSS.escape(each.id)}`)?.toggleAttribute("open", each.open);
    if (!now || !then || now.isEqualNode(then) || now.querySelector(":is(textarea, input[type=text]):not(:placeholder-shown):focus, input:checked")) continue;
    const scrolled = [...now.querySelectorAll("pre, .msgs")].map(each => each.scrollTop);
    const fresh = document.importNode(then, true); // not the part itself: those behind it are found by it
    now.replaceWith(fresh);
    if (scrolled.some(Boolean)) [...fresh.querySelectorAll("pre, .msgs")].forEach((each, n) => { each.scrollTop = scrolled[n] || 0; });
  }
  // The same element, else the one at its place within the innermost part that is still there, else the first of it.
  const [id, nth] = around.find(each => document.getElementById(each[0])) || [], part = document.getElementById(id);
  const back = part && (nth < 0 ? part : reachable(part)[nth] || reachable(part)[0]);
  if (back && !focused.isConnected) back.focus({ preventScroll: true });
  return page;
}

// Inserts a part that the open page does not have, behind the nearest part before it that both pages have.
function insert(part) {
  const fresh = document.importNode(part, true);
  for (let each = part.previousElementSibling; each; each = each.previousElementSibling) {
    const before = each.id && document.getElementById(each.id);
    if (before) { before.after(fresh); return; }
  }
  document.getElementById(part.parentElement?.id)?.prepend(fresh);
}

function say(word, old) {
  if (!live) return;
  document.body.classList.toggle("old", Boolean(old));
  const dot = document.createElement("span"), text = document.createElement("button");
  dot.className = "dot";
  text.type = "button";
  text.id = "pause";
  text.className = "plain";
  text.textContent = paused ? "paused, press to go on" : word;
  text.title = "stop or go on with changes by themselves";
  text.addEventListener("click", () => { paused = !paused; say("live"); if (!paused) refresh(); });
  const held = document.activeElement?.id === "pause";
  live.replaceChildren(dot, text);
  if (held) text.focus();
}

const run = document.getElementById("run");
const ROWS = ["facts", "folded", "axis", "rows"]; // not in a page that was asked for without its rows
const PARTS = [...ROWS, "away", "head", "stalled", "past", "shows", "travel", "panels", "failure", "result", "inbox", "runs", "letters", "sessions", "actions"];

async function refresh(wanted, part) {
  if (paused && !wanted) return;
  const number = ++fresh, url = new URL(location.href);
  if (part) url.searchParams.set("part", "true");
  try {
    const answer = await fetch(url, { headers: { accept: "text/html", ...(tag && { "if-none-match": tag }) } });
    if (number !== fresh) return;
    if (answer.status === 304) { say("live"); return; }
    if (answer.status === 410 || answer.status === 404) { location.reload(); return; }
    if (!answer.ok) { say("the gateway cannot answer: this may be old", true); return; }
    const html = await answer.text();
    if (number !== fresh) return; // what was asked for since then is later
    tag = answer.headers.get("etag") || "";
    const page = replaceParts(html, [...PARTS, ...[...document.querySelectorAll("[id^=votes-]")].map(each => each.id)]);
    const then = page.getElementById("run");
    if (run && then) run.dataset.seq = then.dataset.seq;
    if (run && then && !("follow" in then.dataset)) delete run.dataset.follow;
    slider();
    mark();
    draw();
    const behind = document.getElementById("behind");
    say(behind ? `live, ${behind.textContent}` : "live");
  } catch { say("the gateway is away: this may be old", true); }
}

function writing(part) {
  return [...part.querySelectorAll("textarea, input[type=text]")].some(each => each.value !== each.defaultValue);
}

// Where a model is answering, its last words, by call. They are lossy, and nothing rests on them.
const words = new Map();
const plain = text => text.replace(/[^\P{C}\n\t]/gu, char => `<U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);

function hear(part) {
  const said = words.get(part.call_id) || { now: "", before: "" };
  if (part.supersedes) {
    Object.assign(said, { now: "", before: said.now });
    setTimeout(() => { said.before = ""; draw(); }, 3000);
  }
  said.now = (said.now + plain(String(part.data.text ?? `\n${part.data.tool ?? ""} ${part.data.args ?? ""}`))).slice(-20000);
  words.set(part.call_id, said);
  draw();
}

function draw() {
  for (const place of document.querySelectorAll("[data-call]")) {
    const said = words.get(place.dataset.call), row = place.querySelector("em");
    if (!said) continue;
    const gone = document.createElement("del"), most = row ? 80 : 20000;
    gone.textContent = said.before.slice(-most);
    (row || place).replaceChildren(...(said.before ? [gone, " "] : []), said.now.slice(-most));
    row?.classList.add("says");
  }
}

// A time is relative; on hover it is that of the reader's own zone, too. Before that it is as the gateway sent it: parts
// that are equal are not replaced.
document.addEventListener("mouseover", ({ target }) => {
  const time = target.closest?.("time[datetime]"), at = new Date(time?.dateTime);
  if (isNaN(at)) return;
  const own = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  time.title = `${own}, ${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
});

let due = 0;
function soon() { if (!due) due = setTimeout(() => { due = 0; refresh(); }, 150); }

if (run && "follow" in run.dataset) {
  const source = new EventSource(`${root}/api/runs/${run.dataset.run}/family/stream?parts=true&from_now=true`);
  source.onopen = () => { say("live"); look(); }; // at what came between the page and its stream
  source.onerror = () => { say("the gateway is away: this may be old", true); if (source.readyState === 2) soon(); };
  source.addEventListener("message", soon);
  source.addEventListener("part", event => hear(JSON.parse(event.data)));
  const types = ["RunCompleted", "RunFailed", "RunCancelled"];
  // Every event of the log has its own name: each is listened to that this page knows, and a net of 2 s for the rest.
  for (const type of [...(run.dataset.types || "").split(" "), ...types]) source.addEventListener(type, soon);
}

// A small question is asked now and then: if the run is still there, and has gone on, as one that was retried.
let looks = 0;
async function look() {
  if (paused) return;
  try {
    const answer = await fetch(`${root}/api/runs/${run.dataset.run}/events?limit=1&after_seq=${run.dataset.seq}`);
    if (answer.status === 410 || answer.status === 404) location.reload();
    else if (!answer.ok) say("the gateway cannot answer: this may be old", true);
    else if ((await answer.json()).length || answer.headers.has("refold-lag") !== Boolean(document.getElementById("away")) || document.body.classList.contains("old") || ("follow" in run.dataset && ++looks % 5 === 0)) soon();
  } catch { say("the gateway is away: this may be old", true); }
}

// A page that could not be made is asked for again, unless somebody has paused that.
async function again() {
  try { if (!paused && (await fetch(location.href)).status !== 503) location.reload(); } catch { say("the gateway is away", true); }
}

if (run) setInterval(look, 2000);
else if (document.getElementById("again")) { say("trying again"); setInterval(again, 2000); }
else if (document.querySelector("#runs, #inbox, #letters, #sessions, #actions")) {
  say("live");
  const listed = document.querySelector("[data-stream]");
  const source = listed && new EventSource(listed.dataset.stream);
  for (const type of listed ? listed.dataset.types.split(" ") : []) source.addEventListener(type, soon);
  setInterval(() => { if (!document.hidden) refresh(); }, listed ? 15000 : 2000);
}

// Rows behind an event are dimmed, and those of open events are marked: where only the state is loaded, rows stay.
let marked = null, rows = [];
function mark(at = Number(document.getElementById("at")?.value)) {
  const list = document.getElementById("rows"), seqs = new URLSearchParams(location.search).getAll("seq");
  if (!run || !list) return;
  if (list !== marked) rows = [...list.querySelectorAll("a.row")].map(row => [row, row.id.slice(1)]).filter(([, seq]) => Number(seq)); // not those of runs below
  marked = list;
  for (const [row, seq] of rows) {
    row.classList.toggle("off", Number(seq) > at);
    if (seqs.includes(seq)) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}

// The slider: rows are dimmed as it moves; where it stops, its state is loaded.
function slider() {
  const range = document.getElementById("at");
  if (!range || range.dataset.bound) return;
  range.dataset.bound = "1";
  const out = range.form.querySelector("output");
  range.addEventListener("input", () => {
    out.textContent = `event ${range.value} of ${range.max}`;
    mark();
  });
  let settled = 0; // a key that is held down changes it many times
  range.addEventListener("change", () => { clearTimeout(settled); settled = setTimeout(async () => {
    const url = new URL(location.href);
    url.searchParams.set("at", range.value);
    if (range.value === range.max) url.searchParams.delete("at");
    history.replaceState(null, "", url);
    await refresh(true, true);
  }, 150); });
}
slider();

// A policy file is read into the field; nothing is sent before the button of the form is pressed.
for (const area of document.querySelectorAll("textarea[name=policy]")) {
  const file = Object.assign(document.createElement("input"), { type: "file", accept: ".yaml,.yml,.json", ariaLabel: "Read a policy file" });
  file.addEventListener("change", async () => { if (file.files[0]) area.value = await file.files[0].text(); });
  area.before(file);
}

// The address that a link leads to. Links in rows may be older than the page's address: an event is opened or closed
// beside those that are open by now, and what else is chosen stays.
function target(link) {
  const url = new URL(link.href), here = new URL(location.href), opens = url.searchParams.getAll("open");
  const row = link.closest("#rows > li");
  if (!row) return url;
  const now = here.searchParams, seq = link.id.slice(1), seqs = now.getAll("seq");
  if (String(opens) !== String(now.getAll("open"))) {
    now.delete("open");
    opens.forEach(each => now.append("open", each));
  } else {
    now.delete("seq");
    (seqs.includes(seq) ? seqs.filter(each => each !== seq) : [seq, ...seqs]).forEach(each => now.append("seq", each));
  }
  return here;
}

// A link to another part of this page is a part that is replaced: what is open and where one is stays.
document.addEventListener("click", event => {
  const link = run && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.target.closest("a[href]");
  if (!link || link.origin + link.pathname !== location.origin + location.pathname || link.hash || location.search.includes("do=")) return;
  event.preventDefault();
  const url = target(link), now = new URL(location.href).searchParams, then = url.searchParams;
  history.pushState(null, "", url);
  const same = ["show", "open"].every(name => String(now.getAll(name)) === String(then.getAll(name)));
  refresh(true, same);
});
addEventListener("popstate", () => { if (run) refresh(true); });

// Keys: j and k go through rows, [ and ] through events, / searches, ? lists them.
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const rows = [...document.querySelectorAll("a.row, a.fam")], here = rows.indexOf(document.activeElement);
  const go = { j: rows[here + 1], k: rows[Math.max(0, here - 1)] }[event.key];
  if (go) { go.focus(); event.preventDefault(); }
  if (event.key === "[" || event.key === "]") document.querySelector(`.step a[rel=${event.key === "[" ? "prev" : "next"}]`)?.click();
  if (event.key === "/") { document.getElementById("q").focus(); event.preventDefault(); }
  const asked = document.querySelector("section[id^=ask-]");
  // The keys lead to the button: it is pressed by a second key, so that nothing is decided by a slip.
  if (asked && "ae".includes(event.key)) asked.querySelector(event.key === "a" ? ".btn.go" : "details.edit summary")?.focus();
  if (asked && event.key === "r") asked.querySelector(".btn.no")?.focus();
  if (event.key === "?") document.getElementById("keys")?.toggleAttribute("open");
});
