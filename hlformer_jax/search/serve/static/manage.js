"use strict";
// Changes of the index, if this request may make them: page.js calls `manage` with the server's status.
let job = null, following = null;    // the server's job, and the stream of its states
const runs = (state) => state?.state === "running" || state?.state === "stopping";

function manage(facts) {
  $("manage").hidden = $("remove").hidden = !facts.manage;
  if (!facts.manage) return;
  if (!job) prepareManaging();
  $("broken").hidden = !facts.failures;
  $("encoder").textContent = text("panel.encoder", { encoder: facts.encoder });
  $("broken").querySelector("summary").textContent = text("failures", { count: facts.failures });
  $("broken").querySelector("ul").replaceChildren(...facts.failed.map((entry) => make("li", {},
    make("span", {}, make("strong", {}, printable(entry.video)), ` ${printable(entry.reason)}`),
    make("button", { type: "button", class: "button change", "aria-label": text("retry.video", { video: printable(entry.video) }),
      onclick: () => begin(`retry/${entry.id}`) }, text("retry")))));
  enable();
}
function prepareManaging() {
  job = { state: "none" };
  $("manage").addEventListener("click", () => { $("panel").showModal(); showRoots(); follow(); });
  $("panel-close").addEventListener("click", () => $("panel").close());
  $("reindex").addEventListener("click", () => begin("index"));
  $("retry").addEventListener("click", () => begin("index", { retry: true }));
  $("job-stop").addEventListener("click", () => begin("stop"));
  $("adding").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (await begin("add", { path: $("path").value.trim() })) $("path").value = "";
  });
  $("remove").addEventListener("click", async () => {
    const id = player.dataset.id, name = $("name").textContent;
    if (await confirmed(text("confirm.title", { name }), text("confirm.video"))) begin("remove", { id });
  });
  follow();    // a job may be running
}
async function begin(address, parameters = {}) {    // true if the server accepted the job
  try {
    const begun = await (await get(`api/${address}`, parameters, { method: "POST" })).json();
    $("job-error").hidden = true;
    showJob(begun);
    if (runs(begun)) $($("panel").open ? "job-stop" : "manage").focus();    // the button is disabled now
    follow();
    return true;
  } catch (error) {
    $("job-error").textContent = error.message;
    $("job-error").hidden = false;
    if (!$("panel").open) toast(error.message);
    follow();    // another page may have begun a job
    return false;
  }
}
function confirmed(title, line) {    // true if the person answers yes; Esc means no
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-text").textContent = line;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((answer) => dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true }));
}
async function showRoots() {
  let roots;
  try {
    ({ roots } = await (await get("api/roots")).json());
  } catch (error) { $("job-error").textContent = error.message; $("job-error").hidden = false; return; }
  $("roots").replaceChildren(...roots.map((root) => {
    const counts = joined([countVideos(root.videos), root.failed && text("root.failed", { count: root.failed }),
      !root.available && text("root.offline")]);
    const folder = printable(root.path), row = make("li", {}, make("span", {}, make("strong", {}, folder), ` ${counts}`));
    if (root.name) {
      row.append(make("button", { type: "button", class: "button change", "aria-label": text("root.remove", { folder }),
        onclick: async () => {
          const line = text("confirm.root", { count: root.videos });
          if (await confirmed(text("confirm.title", { name: folder }), line)) begin("remove", { folder: root.name });
        } }, text("remove")));
    }
    return row;
  }));
  enable();
}
function follow() {    // from the present state to the job's end; a lost connection comes back by itself
  if (following) return;
  following = new EventSource("api/job/events");
  following.onmessage = (event) => showJob(JSON.parse(event.data));
  following.onerror = () => {
    $("job-more").textContent = text("job.offline");
    if (following?.readyState === EventSource.CLOSED) following = null;    // refused: the next change connects again
  };
}
function showJob(next) {
  const before = job, going = runs(next);
  job = next;
  if (!going) { following?.close(); following = null; }
  const stopping = next.state === "stopping", { done, total } = next, name = next.kind && text(`job.${next.kind}`);
  $("job").hidden = next.state === "none";
  $("job-line").textContent = next.state === "stopped" ? text("job.stopped") : !going ? printable(next.line) : stopping ? text("job.stopping")
    : printable(next.line) || (total ? text("job.counts", { job: name, done, videos: countVideos(total) }) : text("job.running", { job: name }));
  $("job-line").className = next.state === "failed" ? "bad" : "";
  const bar = $("job-bar"), part = next.duration ? Math.min(1, next.position / next.duration) : 0;
  bar.hidden = $("job-stop").hidden = !going;
  $("job-stop").disabled = stopping;
  bar.max = total || 1;
  if (total) bar.value = Math.min(total, done + (done < total ? part : 0)); else bar.removeAttribute("value");
  $("job-more").textContent = !going ? "" : joined([
    next.video && text("job.video", { video: printable(next.video), position: clock(next.position), duration: clock(next.duration) }),
    next.speed && text("job.speed", { speed: next.speed.toFixed(1) }),
    next.seconds_left && text("job.left", { length: long(next.seconds_left) }),
    next.failed && text("job.failed", { count: next.failed })]);
  $("job-notes").replaceChildren(...(next.notes ?? []).map((line) => make("li", {}, printable(line))));
  $("manage").textContent = !going ? text("manage") : total ? text("manage.counts", { done, total }) : text("manage.running");
  enable();
  const tenth = (state) => state?.total ? Math.floor(10 * state.done / state.total) : -1;
  if (next.state !== before.state || going && tenth(next) !== tenth(before)) {    // announces each tenth, not each frame
    $("job-status").textContent = $("job-line").textContent;
  }
  if (runs(before) && !going) showChanged();
}
function showChanged() {    // shows the index as the job has left it
  if (!$("panel").open) toast($("job-line").textContent);
  else { showRoots(); if (document.activeElement === document.body) $("panel-close").focus(); }
  listChoices();
  const staysOpen = shown && job.kind !== "remove";
  if (wants(values())) {
    if (staysOpen) wanted = { video: shown.id, t: position() };
    ask(0);
  }
  showHome(staysOpen);
}
function enable() {    // disables changes while a job runs
  for (const button of document.querySelectorAll(".change")) button.disabled = runs(job);
}
