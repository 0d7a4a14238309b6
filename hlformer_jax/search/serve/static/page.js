"use strict";
const $ = (id) => document.getElementById(id);
const player = $("player"), strip = $("strip"), CHOSEN = ["signals", "folder", "tag", "longer", "shorter", "since", "until"], FILTERS = ["then", "not", ...CHOSEN];
let PAGE_SIZE = 20;    // results at once; a test asks for fewer
const FIELDS = ["q", "like", ...FILTERS], names = new Map();    // of videos that were shown, by their ids
let hits = [], chosen = -1, moment = null, low = 0, high = 1;    // what is shown
let turn = 0, timer, request, searching = false, playFirst = false, wanted = null;    // what is asked
let picture = null, cues = [];    // a file to look for, and what is said in the video that is chosen
let pending = null, shownStart = null;    // where the player goes, once it can
let preview = null;    // {start, end} of the clip that is played in place of a file that the browser does not play
let encoding = false;    // whether one is on its way
const position = () => pending ?? player.currentTime + (preview?.start ?? 0);

// ---- small things

function clock(seconds) {
  const s = Math.max(0, Math.round(seconds)), two = (x) => String(x).padStart(2, "0");
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}`
    : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}
const span = (m) => `${clock(m.start)}–${clock(m.end)}`;
const points = (score) => score === null ? "–" : score === 0 || Math.abs(score) >= 0.01
  ? score.toFixed(3) : score.toPrecision(2);    // probabilities may be small
const many = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
function long(seconds) {
  const minutes = Math.round(seconds / 60), hours = Math.floor(minutes / 60);
  return hours ? `${hours.toLocaleString("en")} h ${minutes % 60} min`
    : minutes ? `${minutes} min` : `${Math.round(seconds)} s`;
}
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
let fading;
function toast(text) {
  $("toast").textContent = text;
  clearTimeout(fading);
  fading = setTimeout(() => { $("toast").textContent = ""; }, 6000);
}
function dated(hit) {    // its day, and whose
  return `${hit.date_of === "recording" ? "recorded" : "file of"} ${hit.date.slice(0, 10)}`;
}
async function get(path, parameters = {}, options = {}) {
  const url = new URL(path, location.href);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== "") url.searchParams.set(name, value);
  }
  const response = await fetch(url, options).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it still running?");
  });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  throw new Error(error || `The server answered ${response.status}.`);
}

// ---- asking: as it is typed; an answer that has been overtaken is dropped

const wants = ({ q, like }) => Boolean(q || like || picture);
function sought({ q, like, then, not }) {
  const [id, time] = like.split("@");
  const seen = picture ? `like ${picture.name}`
    : like && `like ${names.get(id) || "a moment"} at ${clock(Number(time))}`;
  return [seen, q && `“${q}”`].filter(Boolean).join(" and ") +
    (then ? `, then “${then}”` : "") + (not ? `, but not “${not}”` : "");
}
const values = () => Object.fromEntries(FIELDS.map((name) => [name, $(name).value.trim()]));
function link(more = {}) {
  const parts = Object.entries({ ...values(), ...more }).filter(([, value]) => value !== "");
  return parts.length ? "#" + new URLSearchParams(parts) : location.pathname;
}
async function query(asked, offset, signal) {
  const options = picture ? { method: "POST", body: picture, signal } : { signal };
  return (await get("api/query", { ...asked, k: PAGE_SIZE, offset }, options)).json();
}
function ask(delay) {
  clearTimeout(timer);
  request?.abort();
  const mine = ++turn, asked = values();
  history.replaceState(null, "", link());
  $("unlike").hidden = !(asked.like || picture);
  $("unlike").textContent = `${sought({ like: asked.like })} ✕`;
  document.title = asked.q ? `${asked.q} – Search your videos` : "Search your videos";
  $("clear").hidden = !FILTERS.some((name) => asked[name]);
  if (!$("clear").hidden || !$("unlike").hidden) $("fold").ariaExpanded = true;    // what counts is not hidden
  busy(wants(asked));
  if (!wants(asked)) { playFirst = false; return showHome(); }
  timer = setTimeout(async () => {
    request = new AbortController();
    if (!hits.length || !$("note").hidden) skeletons();
    try {
      const answer = await query(asked, 0, request.signal);
      if (mine === turn) showHits(answer, asked);
    } catch (error) {
      if (mine === turn) showNote("The search failed", error.message, true);
    } finally {
      if (mine === turn) { busy(false); playFirst = false; wanted = null; }
    }
  }, delay);
}
function busy(yes) {
  searching = yes;
  document.body.classList.toggle("busy", yes);
  $("found").setAttribute("aria-busy", yes);
}

// ---- showing

function say(text, unseen = false) {    // aloud, to a screen reader
  $("said").textContent = text;
  $("said").classList.toggle("unseen", unseen);
}
function layout(kind) { $("main").className = kind; $("stage").hidden = kind !== "split"; }
function skeletons() {
  hits = [];
  stop();
  layout("grid");
  $("note").hidden = $("failed").hidden = $("more").hidden = true;
  say("");
  $("results").replaceChildren(...Array.from({ length: 4 }, () =>
    make("li", { class: "card skeleton", "aria-hidden": "true" })));
}
function showNote(title, text, bad = false) {
  hits = [];
  stop();
  layout("");
  $("results").replaceChildren();
  $("failed").hidden = $("more").hidden = true;
  say(`${title}. ${text}`, true);
  $("note").className = bad ? "bad" : "";
  $("note-title").textContent = title;
  $("note-text").textContent = text;
  $("again").hidden = !bad;
  $("note").hidden = false;
}
async function showHome(factsAlone = false) {
  const mine = turn;
  let facts;
  try {
    facts = await (await get("api/status")).json();
  } catch (error) {
    if (mine === turn && !wants(values())) showNote("Nothing can be searched", error.message, true);
    return;
  }
  const model = make("span", { id: "encoder" }, ` · ${facts.encoder}`);
  $("facts").replaceChildren(`${many(facts.videos, "video")} · ${long(facts.seconds)}`, model);
  manage(facts);
  if (factsAlone || mine !== turn || wants(values())) return;
  if (!facts.videos) {
    showNote("No video is indexed yet", facts.manage ? "Add a folder by the button Manage."
      : "Index a folder: python -m hlformer_jax.search index FOLDER --index=DIR");
  } else {
    showNote("Find the moment you remember",
      "Describe in a sentence what happens. Press / to type, the arrow keys to move between " +
      "results, Enter to play and Esc to come back.");
    hits = facts.recent;
    layout("grid");
    say("Newest videos");
    $("results").replaceChildren(...hits.map(card));
  }
  const bad = [...facts.failed, ...facts.subtitles];
  $("failed").hidden = !bad.length;
  $("failed").querySelector("summary").textContent = [
    facts.failures && `${many(facts.failures, "file")} could not be indexed`,
    facts.subtitles.length && `${many(facts.subtitles.length, "subtitle file")} not read, or not in full`,
  ].filter(Boolean).join(" · ");
  $("failed").querySelector("ul").replaceChildren(...bad.map((entry) =>
    make("li", {}, make("strong", {}, entry.video ?? entry.file), ` ${entry.reason}`)));
}
function showHits(answer, asked) {
  hits = answer.results;
  if (!hits.length) {
    const why = CHOSEN.slice(1).some((name) => asked[name]) ? "No video matches these filters. Try other dates, or all folders."
      : "No indexed video matches.";
    return showNote("Nothing found", [why, ...answer.warnings].join(" "));
  }
  measure();
  layout("split");
  $("note").hidden = $("failed").hidden = true;
  const verdict = answer.verdict.charAt(0).toUpperCase() + answer.verdict.slice(1);
  say([...verdict ? [verdict] : [], `${many(hits.length, "video")} for ${sought(asked)}`, ...answer.warnings].join(" · "));
  $("results").replaceChildren(...hits.map(card));
  $("more").hidden = hits.length < PAGE_SIZE;
  const index = Math.max(0, hits.findIndex((hit) => hit.id === wanted?.video));
  choose(index, { at: hits[index].id === wanted?.video ? Number(wanted.t) : null, play: playFirst });
  requestAnimationFrame(drawAll);
}
async function showMore() {
  const mine = turn, asked = values();
  $("more").disabled = true;
  try {
    const answer = await query(asked, hits.length);
    if (mine !== turn) return;
    const cards = answer.results.map((hit, i) => card(hit, hits.length + i));
    hits.push(...answer.results);
    measure();
    $("results").append(...cards);
    $("more").hidden = answer.results.length < PAGE_SIZE;
    say(`${many(hits.length, "video")} for ${sought(asked)}`);
    cards[0]?.querySelector(".open").focus();
    requestAnimationFrame(drawAll);
  } catch (error) { toast(error.message); } finally { $("more").disabled = false; }
}
function measure() {    // one scale for all curves
  const scores = hits.flatMap((hit) => hit.scores).filter((score) => score !== null);
  [low, high] = scores.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
}
function chip(index, m, label) {
  return make("button", {
    type: "button", class: "chip", "aria-pressed": "false",
    "aria-label": `Play ${label} from ${clock(m.start)} to ${clock(m.end)}`,
    title: `score ${points(m.score)}`,
    onclick: (event) => { event.stopPropagation(); choose(index, { m, play: true }); },
  }, span(m));
}
function alike(file) {    // searches by a picture, or without one
  picture = file;
  $("like").value = $("file").value = "";
  ask(0);
}
function moreLike(hit, time) {
  picture = null;
  $("q").value = "";
  $("like").value = `${hit.id}@${time.toFixed(2)}`;
  scrollTo({ top: 0 });
  ask(0);
}
function isFavourite(hit) {    // letters are compared as the server does: without case, accents as one
  return hit.tags.some((tag) => tag.normalize("NFC").toLowerCase() === "favourite");
}
function star(hit, name) {    // makes a video a favourite, and no more one
  const button = make("button", { type: "button", class: "star", "aria-label": `Favourite ${name}`,
    onclick: async (event) => {
      event.stopPropagation();
      const change = { [isFavourite(hit) ? "drop" : "add"]: "favourite" };
      try {
        hit.tags = (await (await get(`api/tag/${hit.id}`, change, { method: "POST" })).json()).tags;
        show();
        choices();
      } catch (error) { toast(error.message); }
    } });
  const show = () => {
    const yes = isFavourite(hit);
    button.textContent = yes ? "★" : "☆";
    button.setAttribute("aria-pressed", yes);
    button.title = hit.tags.join(", ") || "Make it a favourite";
  };
  show();
  return button;
}
function card(hit, index) {
  names.set(hit.id, hit.video.split("/").pop());
  const name = hit.video.split("/").pop(), first = hit.moments[0];
  const at = first ? first.peak : Math.min(1, hit.duration / 2);
  const image = make("img", { src: `thumbnail/${hit.id}?t=${at.toFixed(2)}&width=320`, alt: "",
    loading: "lazy", onerror: () => image.remove() });
  const open = make("button", { type: "button", class: "open", title: hit.video,
    "aria-label": `Play ${name}` + (first ? ` from ${clock(first.start)}` : "") },
    make("span", {}, name));
  const row = make("p", { class: "row quiet" }, make("span", { title: [dated(hit), ...hit.copies ?? []].join("\n") },
    [hit.folder, hit.copies?.length && `${hit.copies.length + 1} copies`].filter(Boolean).join(" · ") || "\u00a0"));
  if (first) row.append(make("span", { title: "How well the best moment matches" }, points(hit.score)));
  open.addEventListener("focus", () => { if (first && chosen !== index) choose(index); });
  return make("li", { class: "card", onclick: () => choose(index, { play: true }) },
    make("div", { class: "thumb" }, image, make("span", {}, clock(hit.duration))),
    make("div", {}, open, row, make("canvas", { "aria-hidden": "true" })),
    make("div", {}),
    ...(hit.passages?.length ? [make("button", { type: "button", class: "said", title: "Play this passage",
      onclick: (event) => { event.stopPropagation(); choose(index, { at: hit.passages[0].start, play: true }); } },
      `${clock(hit.passages[0].start)} “${hit.passages[0].text}”`)] : []),
    make("div", { class: "chips" }, star(hit, name), ...hit.moments.slice(0, 3).map((m) => chip(index, m, name)),
      make("button", { type: "button", class: "chip like", "aria-label": `More like ${name} at ${clock(at)}`,
        onclick: (event) => { event.stopPropagation(); moreLike(hit, at); } }, "More like this")));
}

// ---- the player

function choose(index, { m = null, at = null, play = false } = {}) {
  const hit = hits[index];
  if (!hit) return;
  layout("split");
  $("note").hidden = true;
  const other = player.dataset.id !== hit.id || player.error;
  moment = m || (at === null ? hit.moments[0]
    : hit.moments.find((one) => one.start <= at && at <= one.end) || hit.moments[0]) || null;
  const start = at ?? moment?.start ?? 0;
  const moved = other || shownStart !== start;    // a search that finds the same goes on playing
  chosen = index;
  shownStart = start;
  if (other) {
    showTranscript(hit.id);
    $("trouble").hidden = true;
    player.dataset.id = hit.id;
    player.poster = `thumbnail/${hit.id}?t=${start.toFixed(2)}&width=960`;
    player.autoplay = play;    // a preview too, once it is there
    load(`video/${hit.id}#t=${start.toFixed(2)}`);
  }
  if (moved || play || at !== null || m) seek(start);
  if (play) player.play().catch(() => {});    // what went wrong, the event `error` tells
  player.setAttribute("aria-label", hit.video);
  $("name").textContent = hit.video.split("/").pop();
  $("place").textContent = [hit.folder, dated(hit), moment && `score ${points(hit.score)}`].filter(Boolean).join(" · ");
  $("chips").replaceChildren(...hit.moments.map((one) => chip(index, one, "moment")));
  [...$("chips").children].forEach((one, i) => one.setAttribute("aria-pressed", hit.moments[i] === moment));
  [...$("results").children].forEach((li, i) =>
    li.querySelector(".open").setAttribute("aria-current", i === index));
  $("cut").hidden = $("margin").parentElement.hidden = !moment;
  $("length").textContent = clock(hit.duration);
  strip.setAttribute("aria-valuemax", hit.duration.toFixed(1));
  requestAnimationFrame(drawAll);
}
async function showTranscript(id) {    // where there are subtitles
  cues = [];
  $("transcript").hidden = true;
  const answer = await get(`api/transcript/${id}`).then((response) => response.json())
    .catch((error) => ({ cues: [], line: error.message }));    // it cannot be read: say so
  if (id !== player.dataset.id || !answer.cues.length && !answer.line) return;
  cues = answer.cues;
  const lines = cues.map((cue) => make("li", {},
    make("button", { type: "button", class: "said", onclick: () => { seek(cue.start); player.play().catch(() => {}); } },
      make("span", {}, clock(cue.start)), ` ${cue.text}`)));
  $("transcript").querySelector("ol").replaceChildren(...answer.line ? [make("li", {}, answer.line)] : lines);
  $("transcript").hidden = false;
  followTranscript();
}
function followTranscript() {    // marks what is said now, and keeps it in sight
  const list = $("transcript").querySelector("ol"), now = position();
  const at = cues.findLastIndex((cue) => cue.start <= now + 0.05 && now < cue.end);
  const marked = list.querySelector("[aria-current]"), next = list.children[at];
  if (marked === (next ?? null)) return;
  marked?.removeAttribute("aria-current");
  next?.setAttribute("aria-current", "true");
  if (next && $("transcript").open) list.scrollTop = next.offsetTop - list.offsetTop - list.clientHeight / 3;
}
function seek(seconds) {
  const hit = hits[chosen], time = Math.min(Math.max(0, seconds), Math.max(0, hit.duration - 0.05));
  pending = time;
  if (preview && (time < preview.start || time > preview.end)) showPreview();
  else if (player.readyState > 0) player.currentTime = time - (preview?.start ?? 0);
  drawStrip();
}
function load(address, part = null) {
  if (preview) URL.revokeObjectURL(player.src);
  preview = part;
  player.src = address;
}
async function showPreview() {    // half a minute around the place, encoded anew; one at a time
  if (encoding) return;
  const hit = hits[chosen];
  encoding = true;
  try {
    let part, clip;
    do {    // until it holds the place, which may change meanwhile
      trouble("This browser cannot play this video: half a minute of it is being encoded…");
      part = { start: Math.max(0, position() - 5), end: Math.min(hit.duration, position() + 25) };
      clip = await (await get(`cut/${hit.id}`, part)).blob();
    } while (hit.id === player.dataset.id && (position() < part.start || position() > part.end));
    if (hit.id === player.dataset.id) {
      load(URL.createObjectURL(clip), part);
      trouble("This browser cannot play this video: this is half a minute of it, encoded anew.");
    }
  } catch (error) {
    if (hit.id === player.dataset.id) trouble(`This browser cannot play this video: ${error.message}`);
  }
  encoding = false;
  if (player.dataset.id && player.dataset.id !== hit.id && player.error) showPreview();
}
function trouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = false;
}
function stop() {
  player.pause();
  if (preview) URL.revokeObjectURL(player.src);
  preview = null;
  player.removeAttribute("src");
  player.load();
  delete player.dataset.id;
  chosen = -1;
}
player.addEventListener("loadedmetadata", () => {
  if (pending !== null) player.currentTime = pending - (preview?.start ?? 0);
});
player.addEventListener("seeked", () => { pending = null; drawStrip(); });
player.addEventListener("timeupdate", () => { drawStrip(); followTranscript(); });
player.addEventListener("error", async () => {
  const id = player.dataset.id;
  if (!id) return;
  try {
    await get(`video/${id}`, {}, { headers: { Range: "bytes=0-0" } });
  } catch (error) {
    if (id === player.dataset.id) trouble(error.message);
    return;
  }
  if (id !== player.dataset.id) return;
  if (preview) trouble("This browser plays neither this video nor what it is encoded to.");
  else showPreview();
});

// ---- the strip: scores over the whole length

function draw(canvas, hit, now = null) {
  const width = canvas.clientWidth, height = canvas.clientHeight, scale = devicePixelRatio || 1;
  if (!width) return;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const x = (time) => time / (hit.duration || 1) * width;
  const y = (score) => height - 2 - (height - 5) * (score - low) / (high - low || 1);
  pen.scale(scale, scale);
  pen.fillStyle = colour("--tint");
  for (const m of hit.moments) pen.fillRect(x(m.start), 0, Math.max(2, x(m.end) - x(m.start)), height);
  const area = new Path2D();    // a score holds until the next
  hit.scores.forEach((score, i) => {
    if (score === null) return;
    const left = x(hit.times[i]), right = x(hit.times[i + 1] ?? hit.duration);
    area.rect(left, y(score), right - left + 0.3, height);
  });
  pen.fillStyle = colour("--curve");
  pen.fill(area);
  pen.save();
  pen.beginPath();
  for (const m of hit.moments) pen.rect(x(m.start), 0, Math.max(2, x(m.end) - x(m.start)), height);
  pen.clip();
  pen.fillStyle = colour("--accent");
  pen.fill(area);
  pen.restore();
  if (now !== null) {
    pen.fillStyle = colour("--ink");
    pen.fillRect(Math.min(width - 2, Math.max(0, x(now) - 1)), 0, 2, height);
  }
}
function drawStrip() {
  const hit = hits[chosen];
  if (!hit) return;
  const now = position();
  draw(strip, hit, now);
  $("now").textContent = clock(now);
  strip.setAttribute("aria-valuenow", now.toFixed(1));
  strip.setAttribute("aria-valuetext", `${clock(now)} of ${clock(hit.duration)}`);
}
function drawAll() {
  drawStrip();
  [...$("results").querySelectorAll("canvas")].forEach((canvas, i) => hits[i] && draw(canvas, hits[i]));
}
const timeAt = (event) => hits[chosen].duration * Math.min(1, Math.max(0, event.offsetX / strip.clientWidth));
strip.addEventListener("click", (event) => { seek(timeAt(event)); player.play().catch(() => {}); });
strip.addEventListener("pointermove", (event) => { $("hover").textContent = clock(timeAt(event)); });
strip.addEventListener("pointerleave", () => { $("hover").textContent = ""; });
strip.addEventListener("keydown", (event) => {
  const { duration } = hits[chosen], now = position(), step = Math.max(1, duration / 100);
  const to = { ArrowLeft: now - step, ArrowDown: now - step, ArrowRight: now + step, ArrowUp: now + step,
    PageDown: now - duration / 10, PageUp: now + duration / 10, Home: 0, End: duration }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  seek(to);
});
new ResizeObserver(drawAll).observe($("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

// ---- cutting, links, keys

$("cut").addEventListener("click", async () => {
  const { start, end } = moment, button = $("cut"), id = player.dataset.id;
  button.disabled = true;
  button.textContent = "Cutting…";
  try {
    const response = await get(`cut/${id}`, { start, end, margin: $("margin").value });
    const header = response.headers.get("content-disposition") || "";
    const name = /filename\*=utf-8''([^;]+)/i.exec(header) || /filename="([^"]+)"/.exec(header);
    const url = URL.createObjectURL(await response.blob());
    make("a", { href: url, download: name ? decodeURIComponent(name[1]) : "moment.mp4" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
    toast("The cut is among your downloads.");
  } catch (error) { toast(error.message); }
  button.disabled = false;
  button.textContent = "Cut this moment";
});
$("copy").addEventListener("click", async () => {
  const time = position().toFixed(1);
  history.replaceState(null, "", link({ video: player.dataset.id, t: time }));
  try {
    await navigator.clipboard.writeText(location.href);
    toast("The link is copied.");
  } catch { toast("The link stands in the address bar."); }
});
function restore() {
  picture = null;    // no link holds one
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of FIELDS) {
    const value = given.get(name) || "", field = $(name);
    if (CHOSEN.includes(name) && field.options && ![...field.options].some((one) => one.value === value)) {
      field.append(make("option", { value }, value));
    }
    field.value = value;
  }
  wanted = given.has("video") ? { video: given.get("video"), t: given.get("t") || 0 } : null;
  ask(0);
}
function move(step) {
  const opens = [...$("results").querySelectorAll(".open")];
  const at = opens.indexOf(document.activeElement.closest?.(".card")?.querySelector(".open"));
  if (at + step < 0) return $("q").focus();
  opens[Math.min(at < 0 ? 0 : at + step, opens.length - 1)]?.focus();
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector("dialog[open]")) return;    // it has its own keys
  const typing = event.target.matches("input, select"), inField = event.target === $("q");
  if (event.key === "/" && !typing) { event.preventDefault(); $("q").focus(); $("q").select(); }
  else if (event.key === "Escape" && !inField) { player.pause(); $("q").focus(); }
  else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (inField || !typing)
    && event.target !== player && hits.length) {
    if (inField && event.key === "ArrowUp") return;
    event.preventDefault();
    move(event.key === "ArrowDown" ? 1 : -1);
  }
});
$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  if (searching) { playFirst = true; ask(0); } else if (chosen >= 0) choose(chosen, { m: moment, play: true });
});
for (const name of ["q", "then", "not"]) $(name).addEventListener("input", () => ask(200));
for (const name of CHOSEN) $(name).addEventListener("change", () => ask(0));
$("fold").addEventListener("click", () => { $("fold").ariaExpanded = $("fold").ariaExpanded === "false"; });
$("clear").addEventListener("click", () => {
  for (const name of FILTERS) $(name).value = "";
  $("q").focus();
  ask(0);
});
$("alike").addEventListener("click", () => moreLike(hits[chosen], position()));
$("unlike").addEventListener("click", () => { alike(null); $("q").focus(); });
$("picture").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { if ($("file").files.length) alike($("file").files[0]); });
for (const [name, of] of [["paste", "clipboardData"], ["drop", "dataTransfer"]]) {
  addEventListener(name, (event) => {
    const file = [...event[of].files].find((one) => one.type.startsWith("image/"));
    if (file) { event.preventDefault(); alike(file); }
  });
}
addEventListener("dragover", (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); });
$("more").addEventListener("click", showMore);
$("again").addEventListener("click", () => ask(0));
$("home").addEventListener("click", (event) => {
  event.preventDefault();
  for (const name of FIELDS) $(name).value = "";
  alike(null);
});
addEventListener("hashchange", restore);
// The token is a cookie by now, and stands in no history and no copied link.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);
async function choices() {    // of folders, tags and signals; the search says what is wrong
  const { folders, tags, signals } = await get("api/folders").then((response) => response.json()).catch(() => ({}));
  for (const [id, known] of [["folder", folders], ["tag", tags], ["signals", signals]]) {
    const kept = $(id).value;
    $(id).replaceChildren($(id).options[0],
      ...[...new Set([...known ?? [], kept])].filter(Boolean).map((name) => make("option", { value: name }, name)));
    $(id).value = kept;
  }
}
choices();
restore();
if (wants(values())) showHome();    // for the facts of the header
