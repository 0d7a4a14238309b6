"use strict";
// Changes of the index, for those who may make them: page.js calls `manage` with what the server says.
const DOING = { index: "Indexing", retry: "Trying again", add: "Adding", remove: "Removing" };
let job = null, following = null;    // the server's job, and the stream of its states
const runs = (one) => one?.state === "running" || one?.state === "stopping";

function manage(facts) {
  $("manage").hidden = $("remove").hidden = !facts.manage;
  if (!facts.manage) return;
  if (!job) prepareManaging();
  $("broken").hidden = !facts.failures;
  $("broken").querySelector("summary").textContent = `${many(facts.failures, "file")} could not be indexed`;
  $("broken").querySelector("ul").replaceChildren(...facts.failed.map((entry) => make("li", {},
    make("span", {}, make("strong", {}, entry.video), ` ${entry.reason}`),
    make("button", { type: "button", class: "button change", "aria-label": `Try ${entry.video} again`,
      onclick: () => begin(`retry/${entry.id}`) }, "Try again"))));
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
    const text = "Searches no longer find it, until its file is added again. The file itself stays where it is.";
    if (await isSure(`Remove ${name} from the index?`, text)) begin("remove", { id });
  });
  follow();    // one may be under way
}
async function begin(address, parameters = {}) {    // whether the server has begun it
  try {
    const begun = await (await get(`api/${address}`, parameters, { method: "POST" })).json();
    $("job-error").hidden = true;
    showJob(begun);
    if (runs(begun) && $("panel").open) $("job-stop").focus();
    follow();
    return true;
  } catch (error) {
    $("job-error").textContent = error.message;
    $("job-error").hidden = false;
    if (!$("panel").open) toast(error.message);
    follow();    // another page may have begun one
    return false;
  }
}
function isSure(title, text) {    // what a person answers; Esc is no
  $("sure-title").textContent = title;
  $("sure-text").textContent = text;
  $("sure").returnValue = "";
  $("sure").showModal();
  return new Promise((answer) =>
    $("sure").addEventListener("close", () => answer($("sure").returnValue === "yes"), { once: true }));
}
async function showRoots() {
  let roots;
  try {
    ({ roots } = await (await get("api/roots")).json());
  } catch (error) { $("job-error").textContent = error.message; $("job-error").hidden = false; return; }
  $("roots").replaceChildren(...roots.map((root) => {
    const counts = [many(root.videos, "video"), root.failed && `${root.failed} failed`, !root.available && "not available"];
    const row = make("li", {}, make("span", {}, make("strong", {}, root.path), ` ${counts.filter(Boolean).join(" · ")}`));
    if (root.name) {
      row.append(make("button", { type: "button", class: "button change", "aria-label": `Remove ${root.path}`,
        onclick: async () => {
          const text = `Its ${many(root.videos, "video")} leave the index. The files themselves stay where they are.`;
          if (await isSure(`Remove ${root.path} from the index?`, text)) begin("remove", { folder: root.name });
        } }, "Remove…"));
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
    $("job-more").textContent = "The server does not answer: trying again…";
    if (following?.readyState === EventSource.CLOSED) following = null;    // it refused: the next change asks again
  };
}
function showJob(next) {
  const before = job, going = runs(next);
  job = next;
  if (!going) { following?.close(); following = null; }
  const stopping = next.state === "stopping", { done, total } = next;
  $("job").hidden = next.state === "none";
  $("job-line").textContent = !going ? next.line : stopping ? "Stopping…"
    : next.line || (total ? `${DOING[next.kind]}: ${done} of ${many(total, "video")}` : `${DOING[next.kind]}…`);
  $("job-line").className = next.state === "failed" ? "bad" : "";
  const bar = $("job-bar"), part = next.duration ? Math.min(1, next.position / next.duration) : 0;
  bar.hidden = $("job-stop").hidden = !going;
  $("job-stop").disabled = stopping;
  bar.max = total || 1;
  if (total) bar.value = Math.min(total, done + (done < total ? part : 0)); else bar.removeAttribute("value");
  $("job-more").textContent = !going ? "" : [
    next.video && `${next.video} ${clock(next.position)} of ${clock(next.duration)}`,
    next.speed && `${next.speed.toFixed(1)}× real time`,
    next.seconds_left && `about ${long(next.seconds_left)} left`,
    next.failed && `${next.failed} failed`].filter(Boolean).join(" · ");
  $("job-notes").replaceChildren(...(next.notes ?? []).map((line) => make("li", {}, line)));
  $("manage").textContent = going ? `Manage · ${total ? `${done}/${total}` : "…"}` : "Manage";
  enable();
  const tenth = (one) => one?.total ? Math.floor(10 * one.done / one.total) : -1;
  if (next.state !== before.state || going && tenth(next) !== tenth(before)) {    // not every frame, aloud
    $("job-said").textContent = $("job-line").textContent;
  }
  if (runs(before) && !going) showChanged();
}
function showChanged() {    // what the job has changed
  if (!$("panel").open) toast(job.line);
  else { showRoots(); if (document.activeElement === document.body) $("panel-close").focus(); }
  choices();
  const shown = hits[chosen]?.id;
  if (job.kind === "remove" || wants(values())) ask(0);
  showHome(Boolean(shown) && job.kind !== "remove");
}
function enable() {    // one job at a time
  for (const one of document.querySelectorAll(".change")) one.disabled = runs(job);
}
