"use strict";
const $ = (id) => document.getElementById(id);
const player = $("player"), strip = $("strip");
const PROPERTIES = ["folder", "tag", "longer", "shorter", "since", "until"];    // of videos
const DATES = ["since", "until"];
const CHOICES = ["signals", ...PROPERTIES], FILTERS = ["then", "not", ...CHOICES], FIELDS = ["q", "like", ...FILTERS];
let PAGE_SIZE = 20;    // results at once; a test asks for fewer
const names = new Map();    // names of shown videos by their ids
let hits = [], chosen = -1, low = 0, high = 1;    // results, the index of the video in the player or -1, the scale of curves
let shown = null, moment = null;    // the video in the player, which a link may open without listing it; its moment
let turn = 0, timer, request, searching = false, playFirst = false, wanted = null;    // the running query
let quiet = false;    // true while a script moves the focus, which then selects no result
let picture = null, cues = [];    // the picture of the query; the transcript of the video in the player
let captions = null;    // the transcript as a track of the player
const pictures = new Map();    // pictures of the history's entries by their keys; links have none
const TYPING_PAUSE = 2000;    // ms after which a letter begins another search in the history
let recorded = "", typedAt = -Infinity;    // the search of the history's entry; when a letter was last typed
let pending = null, shownStart = null;    // the time to seek to once the player is ready
let preview = null;    // {start, end} of the encoded clip that replaces a file that the browser cannot play
let playable = true, encoding = false;    // false: only a preview shows the video; true while a preview is being encoded
// Seconds of a video count from its beginning. The player's time is that of the file's timestamps, which may begin
// later, and that of a preview begins at 0. Times are written in milliseconds: the frame begins up to one later.
let origin = 0;    // the player's time at second 0
const MILLISECOND = 0.001;
const toPlayer = (seconds) => seconds + origin + MILLISECOND;
const fromPlayer = (time) => Math.max(0, time - origin - MILLISECOND);
const position = () => pending ?? fromPlayer(player.currentTime);
const stamp = (seconds) => seconds.toFixed(3);

// ---- small things

function clock(seconds) {
  const s = Math.max(0, Math.round(seconds)), two = (x) => String(x).padStart(2, "0");
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}`
    : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}
const span = (m) => `${clock(m.start)}–${clock(m.end)}`;
const points = (score) => score === null ? "–" : score === 0 || Math.abs(score) >= 0.01
  ? score.toFixed(3) : score.toPrecision(2);    // probabilities may be small
const countVideos = (count) => text("videos", { count });
// A name for a line or an attribute: characters that would change the rest of it are escaped, as on a terminal.
const UNPRINTABLE = /[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const printable = (name) => name.replace(UNPRINTABLE, (mark) => {
  const code = mark.charCodeAt(0), hex = code.toString(16);
  return { 9: "\\t", 10: "\\n", 13: "\\r" }[code] ?? (code < 256 ? `\\x${hex.padStart(2, "0")}` : `\\u${hex.padStart(4, "0")}`);
});
const joined = (parts) => parts.filter(Boolean).join(" · ");
function long(seconds) {
  const minutes = Math.round(seconds / 60), hours = Math.floor(minutes / 60);
  return hours ? text("hours", { hours, minutes: minutes % 60 })
    : minutes ? text("minutes", { minutes }) : text("seconds", { seconds: Math.round(seconds) });
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
function toast(line) {
  $("toast").textContent = line;
  clearTimeout(fading);
  fading = setTimeout(() => { $("toast").textContent = ""; }, 6000);
}
function dated(hit) {    // the date of the recording or of the file
  return text(`date.${hit.date_of}`, { date: hit.date.slice(0, 10) });
}
// A setting that this browser keeps; without storage (a private window) it lasts as long as the page.
const settings = {};
function setting(name, value) {
  try {
    if (value) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch { return value ? settings[name] = value : settings[name]; }
}
async function get(path, parameters = {}, options = {}) {
  const url = new URL(path, location.href);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== "") url.searchParams.set(name, value);
  }
  const response = await fetch(url, options).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Error(text("error.server"));
  });
  if (response.ok) return response;
  const { error, code, values } = await response.json().catch(() => ({}));
  if (`refused.${code}` in TEXTS) throw new Error(printable(text(`refused.${code}`, values)));
  throw new Error(error ? printable(error) : text("error.answer", { status: response.status }));
}

// ---- queries: sent as they are typed; an answer to an earlier query is dropped

const wants = ({ q, like }) => Boolean(q || like || picture);
function pictureLabel(like) {
  if (picture) return text("query.picture", { picture: printable(picture.name) });
  const [id, time] = like.split("@");
  return like && text("query.frame", { video: names.get(id) || text("query.moment"), time: clock(Number(time)) });
}
function queryLabel({ q, like, then, not }) {
  const label = pictureLabel(like);
  let query = label && q ? text("query.both", { picture: label, query: q }) : label || text("query.text", { query: q });
  if (then) query = text("query.then", { query, then });
  return not ? text("query.not", { query, not }) : query;
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
const searchKey = () => JSON.stringify([link(), pictureKey()]);
const pictureKey = () => picture && `${picture.name} ${picture.size} ${picture.lastModified}`;
function record(typed) {    // a new search is a new entry of the history; the letters of one sentence share theirs
  const now = Date.now(), goesOn = typed && now - typedAt < TYPING_PAUSE;
  const change = searchKey() === recorded || goesOn ? "replaceState" : "pushState";
  history[change]({ picture: picture && { key: pictureKey(), name: picture.name } }, "", link());
  if (picture) pictures.set(pictureKey(), picture);
  recorded = searchKey();
  typedAt = typed ? now : -Infinity;
}
function ask(delay) {    // only typing has a delay
  clearTimeout(timer);
  request?.abort();
  const mine = ++turn, asked = values();
  record(delay > 0);
  document.title = asked.q ? text("title.query", { query: asked.q }) : text("title");
  showFilters(asked);
  busy(wants(asked));
  if (!wants(asked)) { playFirst = false; return showHome(); }
  timer = setTimeout(async () => {
    request = new AbortController();
    if (!hits.length || !$("note").hidden) skeletons();
    try {
      const answer = await query(asked, 0, request.signal);
      if (mine === turn) showHits(answer, asked);
    } catch (error) {
      if (mine === turn) showNote(text("error.search"), error.message, { bad: true });
    } finally {
      if (mine === turn) { busy(false); playFirst = false; wanted = null; }
    }
  }, delay);
}
function fill(name, value) {    // a date that the browser's field does not show, such as 2026, is shown as text
  const field = $(name), isDate = DATES.includes(name);
  if (isDate) field.type = "date";
  field.value = value;
  if (isDate && value && !field.value) Object.assign(field, { type: "text", value });    // the server may refuse it
}
function showFilters(asked) {    // a chip for each filter in use, which removes it
  const label = pictureLabel(asked.like), used = FILTERS.filter((name) => asked[name]);
  const chips = used.map((name) => {
    const value = $(name).selectedOptions?.[0].textContent ?? asked[name];
    return filterChip(text("filter.value", { label: text(name), value }), () => { fill(name, ""); ask(0); });
  });
  if (label) chips.unshift(filterChip(label, () => searchPicture(null), "unlike"));
  $("used").replaceChildren(...chips);
  $("used").hidden = !chips.length;
  $("clear").hidden = !used.length;
  $("fold").textContent = used.length ? text("filters.counts", { count: used.length }) : text("filters");
}
function filterChip(filter, remove, id = "") {
  return make("button", { type: "button", class: "chip used", ...id && { id }, "aria-label": text("filter.remove", { filter }),
    onclick: () => { remove(); ($("used").querySelector("button") ?? $("q")).focus(); } },
    make("span", {}, filter), make("span", { "aria-hidden": "true" }, " ✕"));
}
function fold(open) {
  $("fold").ariaExpanded = open;
  $("filters").hidden = !open;
}
function busy(yes) {
  searching = yes;
  document.body.classList.toggle("busy", yes);
  $("found").setAttribute("aria-busy", yes);
}

// ---- showing

function announce(line, hidden = false) {    // a status line, which screen readers read out
  $("status").textContent = line;
  $("status").classList.toggle("hidden-text", hidden);
}
function list(cards) {    // shows results; if this removes or hides what has the focus, a result or the search field gets it
  const focused = document.activeElement;
  $("results").replaceChildren(...cards);
  if (focused.checkVisibility()) return;
  queueMicrotask(() => focusQuietly($("results").querySelectorAll(".open")[Math.max(chosen, 0)] ?? $("q")));
}
function focusQuietly(element, options = { preventScroll: true }) {    // keeps the video in the player
  quiet = true;
  element.focus(options);
  quiet = false;
}
function layout(kind) { $("main").className = kind; $("stage").hidden = kind !== "split"; }
function skeletons() {
  hits = [];
  stop();
  layout("grid");
  $("note").hidden = $("failed").hidden = $("more").hidden = $("advice").hidden = true;
  announce("");
  list(Array.from({ length: 4 }, () => make("li", { class: "card skeleton", "aria-hidden": "true" })));
}
function showNote(title, line, { bad = false, tips = [], hints = false } = {}) {
  hits = [];
  stop();
  layout("");
  list([]);
  $("failed").hidden = $("more").hidden = $("advice").hidden = true;
  announce(`${title}. ${line}`, true);
  $("note").className = bad ? "bad" : "";
  $("note-title").textContent = title;
  $("note-text").textContent = line;
  $("tips").hidden = !tips.length;
  listTips("tips", tips);
  $("hints").hidden = !hints;
  $("again").hidden = !bad;
  $("note").hidden = false;
}
function listTips(id, tips) {
  $(id).querySelector("ul").replaceChildren(...tips.map((key) => make("li", {}, text(key))));
}
function tipsFor(asked) {    // what may find more than a query found
  return [
    PROPERTIES.some((name) => asked[name]) && "try.filters",
    (asked.since || asked.until) && "try.dates",
    asked.signals === "transcript" && "try.transcript",
    asked.signals === "visual" && "try.visual",
    asked.not && "try.exclude",
    asked.then && "try.then",
    asked.q && "try.words",
    "try.status",
  ].filter(Boolean);
}
async function showHome(factsAlone = false) {
  const mine = turn;
  const asked = values(), used = PROPERTIES.filter((name) => asked[name]);
  const filters = factsAlone || wants(asked) ? {} : Object.fromEntries(used.map((name) => [name, asked[name]]));
  let facts;
  try {
    facts = await (await get("api/status", filters)).json();
  } catch (error) {
    const title = text(used.length ? "error.search" : "error.status");
    if (mine === turn && !wants(values())) showNote(title, error.message, { bad: true });
    return;
  }
  const size = { videos: countVideos(facts.videos), length: long(facts.seconds), encoder: facts.encoder };
  $("facts").textContent = text("facts", size);
  $("help-index").textContent = text("help.index", size);
  $("demo").hidden = !facts.demo_encoder;
  manage(facts);
  if (factsAlone || mine !== turn || wants(values())) return;
  if (!facts.videos) {
    showNote(text("empty.title"), text(facts.manage ? "empty.manage" : "empty.command"));
  } else if (!facts.recent.length && used.length) {
    showNote(text("nothing.title"), text("nothing.newest"), { tips: tipsFor(asked) });
  } else {
    showNote(text("start.title"), text("start.text"), { hints: !setting("hlformer.hints") });
    hits = facts.recent;
    layout("grid");
    const unused = FILTERS.filter((name) => asked[name] && !PROPERTIES.includes(name)).map((name) => text(name));
    announce(joined([text("start.newest"), unused.length && text("start.unused", { filters: unused.join(", ") })]));
    list(hits.map(card));
  }
  if (wanted && facts.videos) openWanted();
  wanted = null;
  const bad = [...facts.failed, ...facts.subtitles];
  $("failed").hidden = !bad.length;
  $("failed").querySelector("summary").textContent = joined([
    facts.failures && text("failures", { count: facts.failures }),
    facts.subtitles.length && text("failures.subtitles", { count: facts.subtitles.length })]);
  $("failed").querySelector("ul").replaceChildren(...bad.map((entry) =>
    make("li", {}, make("strong", {}, printable(entry.video ?? entry.file)), ` ${printable(entry.reason)}`)));
}
function showHits(answer, asked) {
  hits = answer.results;
  if (!hits.length) {
    const why = text(PROPERTIES.some((name) => asked[name]) ? "nothing.filters" : "nothing.text");
    showNote(text("nothing.title"), [why, ...answer.warnings.map(printable)].join(" "), { tips: tipsFor(asked) });
    return wanted && openWanted();
  }
  measure();
  layout("split");
  $("note").hidden = $("failed").hidden = true;
  const calibrated = answer.match_threshold;
  const verdict = answer.good ? "" : !calibrated ? text("verdict.near")
    : text("verdict.threshold", { share: calibrated.false_alarms, count: calibrated.captions });
  announce(joined([verdict, foundLabel(asked), ...answer.warnings.map(printable)]));
  $("advice").hidden = !verdict;
  listTips("advice", tipsFor(asked));
  list(hits.map(card));
  $("more").hidden = hits.length < PAGE_SIZE;
  if (wanted) openWanted();
  else choose(0, { play: playFirst });
  requestAnimationFrame(drawAll);
}
async function openWanted() {    // opens the video of a link at its second; without it, the first result of a query
  const mine = turn, play = playFirst, at = Number(wanted.t), options = { at: at >= 0 ? at : 0, play };
  if (!(at >= 0)) toast(text("link.second", { second: printable(wanted.t) }));
  const id = wanted.video, index = hits.findIndex((hit) => hit.id === id), isQuery = wants(values());
  if (index >= 0) return choose(index, options);
  try {
    const hit = await (await get(`api/video/${encodeURIComponent(id)}`)).json();
    if (mine === turn) showVideo(hit, -1, options);
  } catch (error) {
    if (mine !== turn) return;
    toast(error.message);
    if (isQuery) choose(0, { play });
  }
}
const foundLabel = (asked) => text("found", { videos: countVideos(hits.length), query: queryLabel(asked) });
async function showMore() {
  const mine = turn, asked = values();
  const answer = await query(asked, hits.length);
  if (mine !== turn) return;
  const cards = answer.results.map((hit, i) => card(hit, hits.length + i));
  hits.push(...answer.results);
  if (chosen < 0) chosen = hits.findIndex((hit) => hit.id === shown?.id);
  measure();
  $("results").append(...cards);
  markChosen();
  $("more").hidden = answer.results.length < PAGE_SIZE;
  announce(foundLabel(asked));
  focusQuietly((cards[0] ?? $("results").lastElementChild).querySelector(".open"), {});
  requestAnimationFrame(drawAll);
}
function measure() {    // sets the scale that all curves share
  const scores = hits.flatMap((hit) => hit.scores).filter((score) => score !== null);
  [low, high] = scores.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
}
function momentChip(index, m, video) {
  return make("button", {
    type: "button", class: "chip",
    "aria-label": text("moment.play", { video, start: clock(m.start), end: clock(m.end) }),
    title: text("moment.score", { score: points(m.score) }),
    onclick: (event) => { event.stopPropagation(); choose(index, { m, play: true }); },
  }, span(m));
}
function searchPicture(file) {    // searches by a picture, or, with null, without
  picture = file;
  $("like").value = $("file").value = "";
  ask(0);
}
function moreLike(hit, time) {
  picture = null;
  $("q").value = "";
  $("like").value = `${hit.id}@${stamp(time)}`;
  scrollTo({ top: 0 });
  ask(0);
}
function isFavourite(hit) {    // compares tags as the server does: ignores case, composes accents
  return hit.tags.some((tag) => tag.normalize("NFC").toLowerCase() === "favourite");
}
function star(hit, video) {    // the button that adds and removes the tag `favourite`
  const button = make("button", { type: "button", class: "star", "aria-label": text("favourite", { video }),
    onclick: async (event) => {
      event.stopPropagation();
      const change = { [isFavourite(hit) ? "drop" : "add"]: "favourite" };
      try {
        hit.tags = (await (await get(`api/tag/${hit.id}`, change, { method: "POST" })).json()).tags;
        show();
        listChoices();
      } catch (error) { toast(error.message); }
    } });
  const show = () => {
    const yes = isFavourite(hit);
    button.textContent = yes ? "★" : "☆";
    button.setAttribute("aria-pressed", yes);
    button.title = hit.tags.join(", ") || text("favourite.hint");
  };
  show();
  return button;
}
const fileName = (hit) => printable(hit.video.split("/").pop());
function card(hit, index) {
  const name = fileName(hit), first = hit.moments[0];
  names.set(hit.id, name);
  const at = first ? first.peak : Math.min(1, hit.duration / 2);
  const image = make("img", { src: `thumbnail/${hit.id}?t=${stamp(at)}&width=320`, alt: "",
    loading: "lazy", onerror: () => image.remove() });
  const open = make("button", { type: "button", class: "open", title: printable(hit.video),
    "aria-label": first ? text("result.play.from", { video: name, start: clock(first.start) })
      : text("result.play", { video: name }) },
    make("span", {}, name));
  const row = make("p", { class: "row quiet" }, make("span", { title: [dated(hit), ...(hit.copies ?? []).map(printable)].join("\n") },
    joined([printable(hit.folder), hit.copies?.length && text("result.copies", { count: hit.copies.length + 1 })]) || "\u00a0"));
  if (first) row.append(make("span", { title: text("result.score") }, points(hit.score)));
  open.addEventListener("focus", () => { if (first && !quiet && chosen !== index) choose(index); });
  return make("li", { class: "card", onclick: () => choose(index, { play: true }) },
    make("div", { class: "thumb" }, image, make("span", {}, clock(hit.duration))),
    make("div", {}, open, row, make("canvas", { "aria-hidden": "true" })),
    make("div", {}),
    ...(hit.passages?.length ? [make("button", { type: "button", class: "passage", title: text("result.passage"),
      onclick: (event) => { event.stopPropagation(); choose(index, { m: hit.passages[0], play: true }); } },
      text("passage", { time: clock(hit.passages[0].start), text: hit.passages[0].text }))] : []),
    make("div", { class: "chips" }, star(hit, name), ...hit.moments.slice(0, 3).map((m) => momentChip(index, m, name)),
      make("button", { type: "button", class: "chip like", "aria-label": text("alike.of", { video: name, time: clock(at) }),
        onclick: (event) => { event.stopPropagation(); moreLike(hit, at); } }, text("alike"))));
}

// ---- the player

function choose(index, options) {
  if (hits[index]) showVideo(hits[index], index, options);
}
function showVideo(hit, index, { m = null, at = null, play = false } = {}) {
  layout("split");
  $("note").hidden = hits.length > 0;
  const other = player.dataset.id !== hit.id || player.error;
  moment = m || (at === null ? hit.moments[0]
    : hit.moments.find((m) => m.start <= at && at <= m.end) || hit.moments[0]) || null;
  const start = at ?? moment?.start ?? 0;
  const moved = other || shownStart !== start;    // a query with the same first result does not interrupt it
  chosen = index;
  shown = hit;
  shownStart = start;
  if (other || play) player.autoplay = play;    // when the file or its preview is loaded
  if (other) {
    showTranscript(hit.id);
    $("trouble").hidden = true;
    unload();
    player.dataset.id = hit.id;
    player.poster = `thumbnail/${hit.id}?t=${stamp(start)}&width=960`;
    openFile(hit.id);
  }
  if (moved || play || at !== null || m) seek(start);
  if (play) {
    player.play().catch(() => {});    // the event `error` shows the reason
    player.scrollIntoView({ block: "nearest" });
  }
  player.setAttribute("aria-label", printable(hit.video));
  $("name").textContent = fileName(hit);
  $("place").textContent = joined([printable(hit.folder), dated(hit), moment && text("moment.score", { score: points(hit.score) }),
    ...(hit.copies ?? []).map((path) => text("result.copy", { path: printable(path) }))]);
  const focused = [...$("chips").children].indexOf(document.activeElement);
  $("chips").replaceChildren(...hit.moments.map((m) => momentChip(index, m, text("moment.this"))));
  [...$("chips").children].forEach((chip, i) => chip.setAttribute("aria-pressed", hit.moments[i] === moment));
  $("chips").children[focused]?.focus();
  markChosen();
  $("cut").hidden = $("margin").parentElement.hidden = !moment;
  $("length").textContent = clock(hit.duration);
  strip.setAttribute("aria-valuemax", hit.duration.toFixed(1));
  requestAnimationFrame(drawAll);
}
function markChosen() {
  $("results").querySelectorAll(".open").forEach((open, i) => open.setAttribute("aria-current", i === chosen));
}
async function showTranscript(id) {    // hidden if the video has none
  cues = [];
  fillCaptions();
  $("transcript").hidden = true;
  const answer = await get(`api/transcript/${id}`).then((response) => response.json())
    .catch((error) => ({ cues: [], line: error.message }));    // shown in its place
  if (id !== player.dataset.id || !answer.cues.length && !answer.line) return;
  cues = answer.cues;
  fillCaptions();
  const lines = cues.map((cue) => make("li", {},
    make("button", { type: "button", class: "passage", onclick: () => { seek(cue.start); player.play().catch(() => {}); } },
      make("span", {}, clock(cue.start)), ` ${cue.text}`)));
  $("transcript").querySelector("ol").replaceChildren(...answer.line ? [make("li", {}, answer.line)] : lines);
  $("transcript").hidden = false;
  followTranscript();
}
function fillCaptions() {    // for the browser's own control; at the player's time, which differs in a preview
  if (cues.length) captions ??= player.addTextTrack("captions", text("transcript"));
  if (!captions) return;
  const { mode } = captions;    // the user's choice, also for other videos: a player keeps its tracks
  captions.mode = "hidden";    // a disabled track shows no cues to scripts
  for (const cue of [...captions.cues]) captions.removeCue(cue);
  for (const { start, end, text } of cues) {
    const line = text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
    captions.addCue(new VTTCue(toPlayer(start), toPlayer(end), line));
  }
  captions.mode = mode;
}
function followTranscript() {    // marks the cue at the position of the player, and scrolls to it
  const list = $("transcript").querySelector("ol"), now = position();
  const at = cues.findLastIndex((cue) => cue.start <= now + 0.05 && now < cue.end);
  const marked = list.querySelector("[aria-current]"), next = list.children[at];
  if (marked === (next ?? null)) return;
  marked?.removeAttribute("aria-current");
  next?.setAttribute("aria-current", "true");
  if (next) scrollTranscript(next);
}
function scrollTranscript(line) {
  const list = $("transcript").querySelector("ol");
  if ($("transcript").open) list.scrollTop = line.offsetTop - list.offsetTop - list.clientHeight / 3;
}
$("transcript").addEventListener("toggle", () => {    // to the cue at the position, or the last one before it
  const at = cues.findLastIndex((cue) => cue.start <= position() + 0.05);
  if (at > 0) scrollTranscript($("transcript").querySelector("ol").children[at]);
});
function seek(seconds) {
  pending = Math.min(Math.max(0, seconds), Math.max(0, shown.duration - 0.01));    // in the last frame
  if (preview && (pending < preview.start || pending > preview.end)) showPreview();
  else if (player.readyState > 0) seekPlayer();
  drawStrip();
}
function seekPlayer() {    // to the pending second; browsers end some files whose timestamps begin late too early
  const time = toPlayer(pending);
  if (preview || !(time > player.duration + 0.1)) player.currentTime = time;
  else replaceFile();
}
function replaceFile() {    // shows a preview instead of the file
  playable = false;
  unload();
  showPreview();
}
async function openFile(id) {    // loads the file of a video, or a preview if browsers would show another track
  playable = true;
  const facts = await get(`api/video/${id}`).then((response) => response.json()).catch(() => ({}));    // loading says why
  if (id !== player.dataset.id) return;
  if (facts.needs_preview) { playable = false; return showPreview(); }
  load(`video/${id}`, facts.start ?? 0);
}
function load(address, start, part = null) {
  if (preview) URL.revokeObjectURL(player.src);
  preview = part;
  origin = start;
  fillCaptions();
  player.src = part ? address : `${address}#t=${stamp(toPlayer(pending ?? 0))}`;
}
function unload() {
  if (preview) URL.revokeObjectURL(player.src);
  preview = null;
  origin = 0;
  player.removeAttribute("src");
  player.load();
}
async function showPreview() {    // half a minute around the position, encoded by the server; one at a time
  if (encoding) return;
  const hit = shown;
  encoding = true;
  try {
    let part, clip;
    do {    // until the clip contains the position, which may change meanwhile
      trouble(text("preview.running"));
      part = { start: Math.max(0, position() - 5), end: Math.min(hit.duration, position() + 25) };
      clip = await (await get(`cut/${hit.id}`, part)).blob();
    } while (hit.id === player.dataset.id && (position() < part.start || position() > part.end));
    if (hit.id === player.dataset.id) {
      load(URL.createObjectURL(clip), -part.start, part);
      trouble(text("preview.done"), true);
    }
  } catch (error) {
    if (hit.id === player.dataset.id) trouble(text("preview.failed", { reason: error.message }));
  }
  encoding = false;
  if (player.dataset.id && player.dataset.id !== hit.id && !playable) showPreview();
}
function trouble(line, isPlaying = false) {    // over the whole picture, or above it while it plays
  $("trouble").classList.toggle("line", isPlaying);
  $("trouble").textContent = line;
  $("trouble").hidden = false;
}
function stop() {
  player.pause();
  unload();
  delete player.dataset.id;
  chosen = -1;
  shown = null;
}
player.addEventListener("loadedmetadata", () => {
  if (!player.videoWidth && preview) trouble(text("preview.broken"));
  else if (!player.videoWidth) replaceFile();    // the browser only decodes the sound (HEVC, ProRes)
  else if (pending !== null) seekPlayer();
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
  playable = false;
  if (preview) trouble(text("preview.broken"));
  else showPreview();
});

// ---- the strip: scores over the length of the video

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
  if (!shown) return;
  const hit = shown, now = position();
  draw(strip, hit, now);
  $("now").textContent = clock(now);
  strip.setAttribute("aria-valuenow", now.toFixed(1));
  strip.setAttribute("aria-valuetext", text("strip.position", { time: clock(now), length: clock(hit.duration) }));
}
function drawAll() {
  drawStrip();
  [...$("results").querySelectorAll("canvas")].forEach((canvas, i) => hits[i] && draw(canvas, hits[i]));
}
const timeAt = (event) => shown.duration * Math.min(1, Math.max(0, event.offsetX / strip.clientWidth));
strip.addEventListener("click", (event) => { seek(timeAt(event)); player.play().catch(() => {}); });
strip.addEventListener("pointermove", (event) => { $("hover").textContent = clock(timeAt(event)); });
strip.addEventListener("pointerleave", () => { $("hover").textContent = ""; });
strip.addEventListener("keydown", (event) => {
  const { duration } = shown, now = position(), step = Math.max(1, duration / 100);
  const to = { ArrowLeft: now - 1, ArrowDown: now - step, ArrowRight: now + 1, ArrowUp: now + step,
    PageDown: now - duration / 10, PageUp: now + duration / 10, Home: 0, End: duration }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  seek(to);
});
new ResizeObserver(drawAll).observe($("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

// ---- cutting, links, keys

async function once(button, work) {    // ignores the button meanwhile; a disabled one would lose the focus
  if (button.ariaDisabled) return;
  button.ariaDisabled = "true";
  try { await work(); } catch (error) { toast(error.message); }
  button.ariaDisabled = null;
}
$("cut").addEventListener("click", () => once($("cut"), async () => {
  const { start, end } = moment, id = player.dataset.id;
  $("cut").textContent = text("cut.running");
  try {
    const response = await get(`cut/${id}`, { start, end, margin: $("margin").value });
    const header = response.headers.get("content-disposition") || "";
    const name = /filename\*=utf-8''([^;]+)/i.exec(header) || /filename="([^"]+)"/.exec(header);
    const url = URL.createObjectURL(await response.blob());
    make("a", { href: url, download: name ? decodeURIComponent(name[1]) : "moment.mp4" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
    toast(text("cut.done"));
  } finally { $("cut").textContent = text("cut"); }
}));
$("copy").addEventListener("click", async () => {
  history.replaceState(history.state, "", link({ video: player.dataset.id, t: stamp(position()) }));
  try {
    await navigator.clipboard.writeText(location.href);
    toast(text("link.copied"));
  } catch { toast(text("link.address")); }
});
function restore() {    // shows the search of the address and of the history's entry
  const { key, name } = history.state?.picture ?? {};
  picture = pictures.get(key) ?? null;
  if (name && !picture) toast(text("picture.lost", { picture: printable(name) }));
  $("file").value = "";
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of FIELDS) {
    const value = given.get(name) || "", field = $(name);
    if (field.options && ![...field.options].some((option) => option.value === value)) {
      field.append(make("option", { value }, value));
    }
    fill(name, value);
  }
  wanted = given.has("video") ? { video: given.get("video"), t: given.get("t") || 0 } : null;
  recorded = searchKey();
  ask(0);
  if (wanted) history.replaceState(history.state, "", link(wanted));    // the address stays a link to the video
}
function move(step) {
  const opens = [...$("results").querySelectorAll(".open")];
  const at = opens.indexOf(document.activeElement.closest?.(".card")?.querySelector(".open"));
  if (at + step < 0) return $("q").focus();
  opens[Math.min(at < 0 ? 0 : at + step, opens.length - 1)]?.focus();
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector("dialog[open]")) return;    // dialogs have their own keys
  const typing = event.target.matches("input, select"), inField = event.target === $("q");
  if (event.key === "/" && !typing) { event.preventDefault(); $("q").focus(); $("q").select(); }
  else if (event.key === "?" && !typing) { event.preventDefault(); $("help").showModal(); }
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
  typedAt = -Infinity;    // the sentence is complete
  if (searching) { playFirst = true; ask(0); } else if (chosen >= 0) choose(chosen, { m: moment, play: true });
});
for (const name of ["q", "then", "not"]) $(name).addEventListener("input", () => ask(200));
for (const name of CHOICES) $(name).addEventListener("change", () => ask(0));
$("fold").addEventListener("click", () => fold($("filters").hidden));
$("help-open").addEventListener("click", () => $("help").showModal());
$("help-close").addEventListener("click", () => $("help").close());
$("hints-close").addEventListener("click", () => { setting("hlformer.hints", "closed"); $("hints").hidden = true; $("q").focus(); });
$("clear").addEventListener("click", () => {
  for (const name of FILTERS) fill(name, "");
  $("q").focus();
  ask(0);
});
$("alike").addEventListener("click", () => moreLike(shown, position()));
$("picture").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { if ($("file").files.length) searchPicture($("file").files[0]); });
for (const [name, source] of [["paste", "clipboardData"], ["drop", "dataTransfer"]]) {
  addEventListener(name, (event) => {
    const image = [...event[source].files].find((file) => file.type.startsWith("image/"));
    if (image) { event.preventDefault(); searchPicture(image); }
  });
}
addEventListener("dragover", (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); });
$("more").addEventListener("click", () => once($("more"), showMore));
$("again").addEventListener("click", () => ask(0));
$("home").addEventListener("click", (event) => {
  event.preventDefault();
  for (const name of FIELDS) fill(name, "");
  fold(false);
  searchPicture(null);
});
addEventListener("popstate", restore);    // Back, Forward, and another link in the address bar
// The server has stored the token in a cookie; drop it from the history and from links.
if (location.search) history.replaceState(history.state, "", location.pathname + location.hash);
const signalLabel = (name) => `signals.${name}` in TEXTS ? text(`signals.${name}`) : name;
async function listChoices() {    // fills the lists of folders, tags and signals; a query shows why it fails
  const { folders = [], tags = [], signals = [] } = await get("api/folders").then((response) => response.json()).catch(() => ({}));
  $("signals").options[0].textContent = signals.map(signalLabel).join(", ");
  for (const [id, offered] of [["folder", folders], ["tag", tags], ["signals", signals]]) {
    const selected = $(id).value, label = id === "signals" ? signalLabel : printable;
    $(id).replaceChildren($(id).options[0],
      ...[...new Set([...offered, selected])].filter(Boolean).map((value) => make("option", { value }, label(value))));
    $(id).value = selected;
  }
  showFilters(values());
}
listChoices();
restore();
if (wants(values())) showHome();    // for the facts of the header
