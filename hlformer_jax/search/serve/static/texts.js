"use strict";
// All texts of the page. A translation replaces LANGUAGE and the values of TEXTS; what stands in
// braces is filled in. A text that depends on a number has a form for each plural category of its
// language (https://cldr.unicode.org/index/cldr-spec/plural-rules), chosen by {count}.
const LANGUAGE = "en";
const TEXTS = {
  // the page and its search field
  "title": "Search your videos",
  "title.query": "{query} – Search your videos",
  "home": "Start page",
  "search": "Describe what happens in the video",
  "search.example": "Describe a moment: a person opens the fridge",
  "manage": "Manage",
  "manage.counts": "Manage · {done}/{total}",
  "manage.running": "Manage · …",
  "help.open": "Help and keys",
  "facts": "{videos} · {length}",
  "videos": { one: "{count} video", other: "{count} videos" },
  "hours": "{hours} h {minutes} min",
  "minutes": "{minutes} min",
  "seconds": "{seconds} s",
  "demo": "This is the demo’s encoder. It knows only the drawn shapes of the demo’s videos: try “a red " +
    "circle”. Scores of other sentences mean nothing. For your own videos, use the default encoder.",

  // filters
  "filters": "Filters",
  "filters.counts": "Filters ({count})",
  "filters.used": "Filters in use",
  "filters.clear": "Clear filters",
  "filter.remove": "Remove the filter {filter}",
  "filter.value": "{label}: {value}",
  "then": "Followed by",
  "then.hint": "An event that follows within a minute",
  "not": "Exclude",
  "not.hint": "Leave out frames that show this",
  "signals": "Search in",
  "signals.visual": "visual",
  "signals.transcript": "transcript",
  "signals.hint": "visual: the pictures; transcript: subtitles, speech and text that were recognised",
  "folder": "Folder",
  "folder.all": "all folders",
  "tag": "Tag",
  "tag.all": "any",
  "longer": "Longer than",
  "shorter": "Shorter than",
  "length.all": "any length",
  "length.60": "1 min",
  "length.600": "10 min",
  "length.3600": "1 h",
  "since": "From date",
  "until": "To date",
  "date.hint": "Date of the recording, or of the file",
  "picture": "Picture…",
  "picture.hint": "Search by a picture; you can also paste or drop one here",
  "picture.file": "A picture to search by",
  "picture.lost": "{picture} is not kept when the page is loaded again. Choose the picture again.",

  // queries in words
  "query.picture": "like {picture}",
  "query.frame": "like {video} at {time}",
  "query.moment": "a moment",
  "query.both": "{picture} and “{query}”",
  "query.text": "“{query}”",
  "query.then": "{query}, then “{then}”",
  "query.not": "{query}, but not “{not}”",
  "found": "{videos} for {query}",

  // first use, help
  "start.title": "Find the moment you remember",
  "start.text": "Describe in a sentence what happens, or choose a picture.",
  "start.newest": "Newest videos",
  "start.unused": "of the filters, these apply to searches only: {filters}",
  "hint.visual": "Describe what is visible, as in a caption: “a dog runs on the beach”.",
  "hint.transcript": "Words that are spoken or written are found if a video has subtitles or a transcript.",
  "hint.picture": "Paste or drop a picture to find frames like it; “More like this” continues from a result.",
  "hint.keys": "The button ? shows help and keys.",
  "hint.close": "Got it",
  "help.title": "Help",
  "help.search": "Search",
  "help.keys": "Keys",
  "help.close": "Close",
  "key.enter": "Enter",
  "key.escape": "Esc",
  "key.page.up": "Page Up",
  "key.page.down": "Page Down",
  "key.search": "type a search",
  "key.move": "go to the next or previous result",
  "key.play": "play the result",
  "key.back": "pause, and go back to the search field",
  "key.strip": "on the curve: seek by a second, or by a tenth of the video",
  "key.help": "show this help",
  "help.index": "The index holds {videos}, {length}. Its encoder is {encoder}.",

  // nothing to show
  "empty.title": "No video is indexed yet",
  "empty.manage": "Add a folder by the button Manage.",
  "empty.command": "Index a folder: python -m hlformer_jax.search index FOLDER --index=DIR",
  "nothing.title": "Nothing found",
  "nothing.filters": "No video that passes these filters matches.",
  "nothing.newest": "No indexed video passes these filters.",
  "nothing.text": "No indexed video matches.",
  "nothing.try": "What to try",
  "try.filters": "Remove a filter: above, or all with “Clear filters”.",
  "try.dates": "Other dates: a video without a recording date has that of its file.",
  "try.transcript": "Search in the pictures too: only the transcript was searched.",
  "try.visual": "Search in the transcript too: only the pictures were searched.",
  "try.exclude": "Exclude nothing, or something more precise.",
  "try.then": "Leave out “Followed by”: both events must be in one video within a minute.",
  "try.words": "Other words: describe what is visible, not what it means.",
  "try.status": "Is the video indexed? The start page lists the newest, and files that failed.",
  "error.search": "The search failed",
  "error.status": "Nothing can be searched",
  "error.server": "The server does not answer. Is it still running?",
  "error.answer": "The server answered {status}.",
  "again": "Try again",

  // verdicts of a search
  "verdict.near": "No good match: these results are the nearest, but none stands out",
  "verdict.threshold": {
    one: "No good match: these results are the nearest, but none reaches the match threshold, which " +
      "{share} % of absent things reach (calibrated with {count} caption)",
    other: "No good match: these results are the nearest, but none reaches the match threshold, which " +
      "{share} % of absent things reach (calibrated with {count} captions)",
  },

  // what the server refuses: an error with a code; others are shown in the server’s words
  "refused.busy.searches": "Too many searches are waiting. Try again in a moment.",
  "refused.busy.thumbnails": "Too many pictures are waiting. Try again in a moment.",
  "refused.busy.cuts": "Too many cuts are waiting. Try again in a moment.",
  "refused.folder.unknown": "The index has no such folder.",
  "refused.index.missing": "The index {index} was deleted or moved. Move it back, or start the server with its new path.",
  "refused.job.running": "The index is being changed already. Wait until that ends, or stop it.",
  "refused.manage": "This server does not allow changes of the index: start it with --manage.",
  "refused.path.relative": "Give an absolute path, such as /home/ann/Videos.",
  "refused.picture.large": "The picture is larger than {size} MiB. Choose a smaller one.",
  "refused.query.image": "The picture cannot be read. Choose another one, as JPEG or PNG.",
  "refused.server": "The server failed ({error}). Its terminal says more.",
  "refused.token": "This server needs a token: open the address that it printed.",
  "refused.video.changed": "{video} has changed since it was indexed. Index its folder again.",
  "refused.video.forbidden": "{video} cannot be read: its permissions forbid it.",
  "refused.video.link": "{video} is a link out of the indexed folder, which is not followed.",
  "refused.video.missing": "{video} was deleted or moved since it was indexed. Index its folder again.",
  "refused.video.unknown": "The index has no such video. Search again.",
  "refused.video.unreadable": "{video} cannot be read ({reason}). Check its disk.",

  // results
  "results": "Results",
  "results.more": "More results",
  "result.play": "Play {video}",
  "result.play.from": "Play {video} from {start}",
  "result.copies": { one: "{count} copy", other: "{count} copies" },
  "result.copy": "copy: {path}",
  "result.score": "How well the best moment matches",
  "result.passage": "Play this passage",
  "passage": "{time} “{text}”",
  "date.recording": "recorded {date}",
  "date.file": "file of {date}",
  "moment.play": "Play {video} from {start} to {end}",
  "moment.this": "moment",
  "moment.score": "score {score}",
  "favourite": "Favourite {video}",
  "favourite.hint": "Make it a favourite",
  "alike": "More like this",
  "alike.of": "More like {video} at {time}",
  "failures": { one: "{count} file could not be indexed", other: "{count} files could not be indexed" },
  "failures.subtitles": {
    one: "{count} subtitle file not read, or not in full",
    other: "{count} subtitle files not read, or not in full",
  },

  // the player
  "player": "Player",
  "strip": "Position in the video",
  "strip.help": "The curve shows how well each instant matches the sentence. The arrow keys seek.",
  "strip.position": "{time} of {length}",
  "moments": "Moments of this video",
  "transcript": "Transcript",
  "cut": "Cut this moment",
  "cut.running": "Cutting…",
  "cut.done": "The cut is among your downloads.",
  "margin": "with",
  "margin.label": "Margin before and after the moment",
  "margin.none": "no margin",
  "margin.seconds": "{seconds} s around",
  "link": "Copy link",
  "link.copied": "The link is copied.",
  "link.second": "The link’s time {second} is not a number of seconds: the video begins at 0:00.",
  "link.address": "The link stands in the address bar.",
  "remove": "Remove…",
  "preview.running": "This browser cannot play this video: half a minute of it is being encoded…",
  "preview.done": "This browser cannot play this video: this is half a minute of it, encoded anew.",
  "preview.failed": "This browser cannot play this video: {reason}",
  "preview.broken": "This browser plays neither this video nor what it is encoded to.",

  // the panel that changes the index
  "panel": "The index",
  "panel.close": "Close",
  "panel.encoder": "Encoder: {encoder}",
  "roots": "Folders",
  "root.failed": "{count} failed",
  "root.offline": "not available",
  "root.remove": "Remove {folder}",
  "add.label": "Add a folder of the machine that serves this page",
  "add.example": "/home/ann/Videos",
  "add": "Add",
  "reindex": "Index again",
  "retry": "Try again",
  "retry.all": "Try all again",
  "retry.video": "Try {video} again",
  "job": "Progress",
  "job.stop": "Stop",
  "job.stopping": "Stopping…",
  "job.stopped": "Stopped. The indexed videos are kept; the others will be indexed next time.",
  "job.index": "Indexing",
  "job.retry": "Trying again",
  "job.add": "Adding",
  "job.remove": "Removing",
  "job.counts": "{job}: {done} of {videos}",
  "job.running": "{job}…",
  "job.video": "{video} {position} of {duration}",
  "job.speed": "{speed}× real time",
  "job.left": "about {length} left",
  "job.failed": "{count} failed",
  "job.offline": "The server does not answer: trying again…",
  "confirm.title": "Remove {name} from the index?",
  "confirm.video": "Searches no longer find it, until its file is added again. The file itself stays where it is.",
  "confirm.root": {
    one: "Its {count} video leaves the index. The file itself stays where it is.",
    other: "Its {count} videos leave the index. The files themselves stay where they are.",
  },
  "confirm.no": "Keep",
  "confirm.yes": "Remove",
};

const plurals = new Intl.PluralRules(LANGUAGE);

// The text of a key, with its values filled in; numbers are written as the language does.
function text(key, values = {}) {
  const entry = TEXTS[key], form = typeof entry === "string" ? entry : entry[plurals.select(values.count)];
  return form.replace(/\{(\w+)\}/g, (_, name) =>
    typeof values[name] === "number" ? values[name].toLocaleString(LANGUAGE) : values[name]);
}

// Fills index.html in: each of these attributes holds the key of a text.
const PLACES = { "data-label": "aria-label", "data-hint": "title", "data-example": "placeholder" };
function translate() {
  document.documentElement.lang = LANGUAGE;
  document.title = text("title");
  for (const element of document.querySelectorAll("[data-text]")) {
    element.prepend(text(element.dataset.text, element.dataset));
  }
  for (const [source, target] of Object.entries(PLACES)) {
    for (const element of document.querySelectorAll(`[${source}]`)) {
      element.setAttribute(target, text(element.getAttribute(source)));
    }
  }
}
translate();
