"""Transcripts: the cues of each video's subtitles, speech and OCR, in the index's database.

Subtitle tracks and recognised cues belong to all copies of a content. A subtitle file belongs to
the copies in its folder, so copies of one content can have different cues.

The table `cues` has a row for each source: the tracks of the container, each subtitle file, and
each kind of recognition. Subtitles can be read again at any time. Recognition takes hours, so its
result is protected by the checksum and the copy of the database (`index.database`).
"""

import contextlib
import dataclasses
import json
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hlformer_jax.search.index import Index, Writer, split_name
from hlformer_jax.search.index.database import only_value
from hlformer_jax.search.signals.transcript import sidecars
from hlformer_jax.search.times import SECONDS_AFTER_END
from hlformer_jax.text import caseless, legible

READER_VERSION = 9
"""Version of the subtitle readers; files that an older version read are read again."""

TRANSCRIPTS_AT_ONCE = 256
"""Largest number of transcripts that are written in one transaction."""

MAX_LINES = 20
"""Largest number of problems that one run reports; `status` lists them all."""

NOT_TEXT = "pictures of text, or an unsupported format"
"""Part of the problem of tracks that can never be read (`video.subtitles`).

It matters only if a video has no other subtitles.
"""

_PULSE_NAMES = 1000
"""Number of files that are listed between two calls of `pulse`."""


class Cue(NamedTuple):
    """A timed line of text."""

    start: float
    end: float
    text: str


RawCue = tuple[float, float, str]
"""A cue as readers return it: start and end in seconds, and text."""


@dataclasses.dataclass
class CueSource:
    """The cues that were read from one file."""

    file: str  # absolute path, as Python decodes file names; "" for the tracks of the video itself
    stamp: list[int]  # state of the file when it was read; empty if it must be read again
    cues: list[Cue] = dataclasses.field(default_factory=list)
    problem: str = ""  # why cues are missing, as the end of a line about the file
    videos: list[str] | None = None  # names of the copies that it belongs to; None for all copies


@dataclasses.dataclass(frozen=True)
class Copies:
    """Some copies of a content, by the names of the videos in the index.

    Attributes:
      names: names of videos.
      are_others: whether the copies are all except the named ones.
    """

    names: frozenset[str] = frozenset()
    are_others: bool = True

    def __contains__(self, video: str) -> bool:
        return (video in self.names) != self.are_others


@dataclasses.dataclass
class Transcript:
    """The transcript of one content.

    Attributes:
      tracks: the subtitle tracks of the video itself.
      files: the subtitle files.
      recognised: a mapping for "speech" and one for "ocr", with the fields "by" (the identity of
        the recogniser) and "cues".
    """

    tracks: CueSource = dataclasses.field(default_factory=lambda: CueSource("", []))
    files: list[CueSource] = dataclasses.field(default_factory=list)
    recognised: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def has_subtitles(self, video: str) -> bool:
        """Return whether the copy with this name in the index has subtitles."""
        return any(source.cues for source in (self.tracks, *self._files_of(video)))

    def cues(self, video: str) -> list[Cue]:
        """Return the cues of one copy; speech is left out if the copy has subtitles.

        Args:
          video: the index's name of the copy.
        """
        return self._cues(self._files_of(video))

    def _files_of(self, video: str) -> list[CueSource]:
        return [file for file in self.files if file.videos is None or video in file.videos]

    def by_copies(self) -> list[tuple[Copies, list[Cue]]]:
        """Return the cues of each group of copies that have the same cues.

        The first group is all copies except those of the other groups.
        """
        shared = [file for file in self.files if file.videos is None]
        files_by_video: dict[str, list[CueSource]] = {}
        for file in self.files:
            for video in file.videos or ():
                files_by_video.setdefault(video, []).append(file)
        default_cues = self._cues(shared)
        names_by_cues: dict[tuple[Cue, ...], list[str]] = {tuple(default_cues): []}
        for video, sidecar_files in files_by_video.items():
            cues = self._cues([*shared, *sidecar_files])
            names_by_cues.setdefault(tuple(cues), []).append(video)
        videos_with_default = names_by_cues.pop(tuple(default_cues))
        exceptions = files_by_video.keys() - videos_with_default
        return [(Copies(frozenset(exceptions)), default_cues)] + [
            (Copies(frozenset(names), are_others=False), [*group])
            for group, names in names_by_cues.items()
        ]

    def _cues(self, files: Iterable[CueSource]) -> list[Cue]:
        subtitles = sorted({*self.tracks.cues, *(cue for file in files for cue in file.cues)})
        recognised = [
            cue
            for kind, recognition in self.recognised.items()
            if not (kind == "speech" and subtitles)
            for cue in recognition["cues"]
        ]
        return sorted([*subtitles, *recognised])


class SubtitleTask(NamedTuple):
    """A subtitle file, or a video with subtitle tracks, that must be read."""

    path: Path
    video: Path | None  # the video of the subtitle file; None if `path` is a video


class SubtitleResult(NamedTuple):
    """The cues that a task has read."""

    task: SubtitleTask
    cues: Sequence[RawCue]
    problem: str  # why cues are missing; "" if none are
    is_final: bool  # whether reading the unchanged file again would give the same result


class SubtitleReader(NamedTuple):
    """Functions that read subtitles, and the suffixes of files.

    `tracks` takes a video; `file` takes a subtitle file and its video. Both return an iterable of
    cues, which may have an attribute `warnings` with lines on parts that could not be read.
    """

    suffixes: Iterable[str]  # suffixes of subtitle files, in lower case
    tracks: Callable[[Path], Iterable[RawCue]]
    file: Callable[[Path, Path | None], Iterable[RawCue]]
    video_suffixes: Iterable[str] = ()  # of videos; a file may belong to an unindexed one


# Storage

_TRACKS, _FILE = "tracks", "file"
"""Sources of cues that are subtitles; all other sources are kinds of recognition."""


def load(index: Index, content: str) -> Transcript | None:
    """Load the transcript of a content; None if there is none."""
    return index.decode(
        _decode,
        "SELECT source, facts, cues FROM cues WHERE content = ? ORDER BY position",
        [content],
    )


def _decode(rows: Sequence[tuple[str, str, bytes]]) -> Transcript | None:
    """Decode the rows of a transcript; errors of many kinds mean that one is damaged."""
    if not rows:
        return None
    transcript = Transcript()
    for source, facts, cues in rows:
        fields = json.loads(facts)
        fields["cues"] = [Cue(*cue) for cue in json.loads(zlib.decompress(cues))]
        if source == _TRACKS:
            transcript.tracks = CueSource(**fields)
        elif source == _FILE:
            transcript.files.append(CueSource(**fields))
        else:
            transcript.recognised[source] = fields
    return transcript


def put(writer: Writer, content: str, transcript: Transcript) -> None:
    """Write the transcript of a content in place of the one before, unless it was removed."""
    sources = [(_TRACKS, vars(transcript.tracks))]
    sources += [(_FILE, vars(file)) for file in transcript.files]
    sources += transcript.recognised.items()
    writer.execute("DELETE FROM cues WHERE content = ?", content)
    for position, (source, fields) in enumerate(sources):
        facts = {name: value for name, value in fields.items() if name != "cues"}
        writer.execute(
            "INSERT INTO cues SELECT hash, ?, ?, ?, ? FROM contents WHERE hash = ?",
            position, source, json.dumps(facts, allow_nan=False), _compress(fields["cues"]),
            content,
        )  # fmt: skip
    mark_changed(writer)


def mark_changed(writer: Writer) -> None:
    """Change the version of the transcripts, so that open libraries read them again."""
    writer.execute(
        "UPDATE settings SET value = ? WHERE name = 'transcripts'", secrets.token_hex(16)
    )


def version(index: Index) -> str:
    """Return a text that changes whenever transcripts or embeddings of their passages change."""
    statement = "SELECT value FROM settings WHERE name = 'transcripts'"
    return str(index.decode(only_value, statement))


def contents(index: Index) -> list[str]:
    """Return the contents that have transcripts, sorted."""
    rows = index.select("SELECT DISTINCT content FROM cues ORDER BY content")
    return [content for [content] in rows]


def contents_with_cues(index: Index) -> set[str]:
    """Return the contents that have transcripts with cues.

    It may include contents without cues, because compressed cues are compared.
    """
    rows = index.select("SELECT DISTINCT content FROM cues WHERE cues != ?", [_compress([])])
    return {content for [content] in rows}


def _compress(cues: Sequence[RawCue]) -> bytes:
    return zlib.compress(json.dumps(cues, allow_nan=False).encode())


# Problems


class Problem(NamedTuple):
    """A subtitle file that could not be read, or not completely."""

    file: str  # the name of the file in the index (`Roots.name_below`)
    reason: str
    video: str = ""  # the video that it belongs to, or whose name its name begins with


def problems(index: Index) -> list[Problem]:
    """Return the problems with subtitle files in the last run."""
    return index.decode(_problems, "SELECT file, reason, video FROM subtitle_problems")


def _problems(rows: Iterable[tuple[bytes, str, bytes]]) -> list[Problem]:
    return sorted(
        Problem(os.fsdecode(file), reason, os.fsdecode(video)) for file, reason, video in rows
    )


def _write_problems(index: Index, listed: Sequence[Problem]) -> None:
    with index.writing() as writer:
        writer.execute("DELETE FROM subtitle_problems")
        for file, reason, video in listed:
            writer.execute(
                "INSERT INTO subtitle_problems VALUES (?, ?, ?)",
                os.fsencode(file), legible(reason), os.fsencode(video),
            )  # fmt: skip


# Bringing transcripts up to date


def videos(index: Index) -> dict[str, list[Path]]:
    """Return the paths of the existing files of each indexed content."""
    paths: dict[str, list[Path]] = {}
    locate = index.roots.path
    for name, record in sorted(index.videos.items()):
        if record.indexed and _is_file(path := locate(name)):
            paths.setdefault(record.content, []).append(path)
    return paths


def _is_file(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(os.stat(path).st_mode)
    return False


def update(
    index: Index,
    reader: SubtitleReader,
    read: Callable[[Sequence[SubtitleTask]], Iterable[SubtitleResult]],
    report: Callable[[str], None],
    retry: bool = False,
    pulse: Callable[[], None] = lambda: None,
) -> None:
    """Update the transcripts of all existing videos. The caller holds the index's lock.

    Args:
      index: the index.
      reader: the suffixes of subtitle files and of videos.
      read: reads subtitle files, in other processes or in this one, in any order.
      report: takes a line for each new problem with a subtitle file.
      retry: whether to read unchanged files again that failed before.
      pulse: called about every second. It may raise to stop; complete transcripts are kept.
    """
    _Update(index, reader, read, report, retry, pulse).perform()


class _SidecarFile(NamedTuple):
    """A subtitle file of a video, and its state."""

    path: Path  # with links resolved
    shown: Path  # the path at which it was found
    stamp: list[int]


def _without_late_cues(source: CueSource, duration: float) -> CueSource:
    """Return a source without the cues that begin after the end of the video.

    They belong to a longer version of it; the source's problem counts them. A cue that begins in
    the video and ends long after it is shortened.
    """
    limit = duration + SECONDS_AFTER_END
    cues = [cue._replace(end=min(cue.end, limit)) for cue in source.cues if cue.start <= limit]
    problem = source.problem
    if count := len(source.cues) - len(cues):
        left_out = f"{count} of {len(source.cues)} cues begin after the end of the video"
        problem += f"{'; ' * bool(problem)}{left_out} ({duration:.1f} s) and are left out"
    return dataclasses.replace(source, cues=cues, problem=problem)


class _PendingTranscript(NamedTuple):
    """A transcript with sources that must still be read, by task."""

    content: str
    before: Transcript | None
    transcript: Transcript
    sources: dict[SubtitleTask, CueSource]  # not read yet


@dataclasses.dataclass
class _Update:
    """One run of `update`."""

    index: Index
    reader: SubtitleReader
    read: Callable[[Sequence[SubtitleTask]], Iterable[SubtitleResult]]
    report: Callable[[str], None]
    retry: bool
    pulse: Callable[[], None]

    def __post_init__(self) -> None:
        self._suffixes = frozenset(self.reader.suffixes)
        self._video_suffixes = frozenset(self.reader.video_suffixes)
        roots = self.index.roots
        self._roots = [Path(os.path.realpath(root)) for root in roots.values()]
        self._offline_roots = set(roots.offline())
        self._problems: list[Problem] = []
        self._changed: list[tuple[str, Transcript]] = []
        self._sidecars: dict[Path, list[_SidecarFile]] = {}  # by video
        self._unlisted: set[Path] = set()  # folders of videos that could not be listed completely
        self._real: dict[Path, Path] = {}  # folders with links resolved
        self._locate = roots.path
        self._names = {self._locate(name): name for name in self.index.videos}
        self._durations = {
            record.content: record.duration
            for record in self.index.videos.values()
            if record.indexed
        }

    def perform(self) -> None:
        try:
            self._read_all()
        finally:
            self._save()
        self._finish()

    def _read_all(self) -> None:
        videos_by_content = videos(self.index)
        self._list_folders(videos_by_content)
        pending: dict[SubtitleTask, _PendingTranscript] = {}
        for content, paths in videos_by_content.items():
            self.pulse()
            plan = self._plan(content, paths)
            if plan.sources:
                pending |= dict.fromkeys(plan.sources, plan)
            else:
                self._queue(plan)
        for subtitles in self.read(list(pending)) if pending else ():
            self.pulse()
            plan = pending[subtitles.task]
            self._store_result(plan.sources.pop(subtitles.task), subtitles)
            if not plan.sources:
                self._queue(plan)
                self._save()  # at once: reading a file takes longer than a transaction

    def _list_folders(self, videos_by_content: Mapping[str, Sequence[Path]]) -> None:
        """Find the subtitle files of all videos; each folder is listed once."""
        folders: dict[Path, set[str]] = {
            path.parent: set() for paths in videos_by_content.values() for path in paths
        }
        for path in self._names:
            if path.parent in folders:
                folders[path.parent].add(path.name)
        for folder, names in sorted(folders.items()):
            self.pulse()
            self._list_folder(folder, names)

    def _list_folder(self, folder: Path, video_names: Iterable[str]) -> None:
        if (entries := self._list_entries(folder, folder)) is None:
            self._unlisted.add(folder)
            return
        names = list(entries)
        stems = sidecars.VideoNames({*video_names, *filter(self._is_video, names)})
        listed = sidecars.subtitle_names(names, self._suffixes)
        self._record_matches(folder, folder, sidecars.match(stems, listed, self._suffixes))
        for name in names:
            if caseless(name) in sidecars.FOLDERS:
                self._list_subtitle_folder(folder, folder / name, stems)

    def _list_subtitle_folder(
        self, folder: Path, subtitle_folder: Path, stems: sidecars.VideoNames
    ) -> None:
        """Find the subtitle files in a folder of subtitles, and in its folders of single videos."""
        if (entries := self._list_entries(folder, subtitle_folder)) is None:
            return
        video_stems = sidecars.VideoNames(filter(self._is_video, entries))
        listed = [
            name
            for name in sidecars.subtitle_names(entries, self._suffixes)
            if not video_stems.find_longest(Path(name).stem)[0]  # belongs to a video in this folder
        ]
        matches = sidecars.match(stems, listed, self._suffixes, in_subtitle_folder=True)
        self._record_matches(folder, subtitle_folder, matches)
        for name in (name for name, is_folder in entries.items() if is_folder):
            children = self._list_entries(folder, subtitle_folder / name)
            names = sidecars.subtitle_names(children or (), self._suffixes)
            owners = stems.find_exact(name)
            self._record_matches(
                folder, subtitle_folder / name, sidecars.match_all(owners, names, self._suffixes)
            )

    def _list_entries(self, folder: Path, place: Path) -> dict[str, bool] | None:
        """Return each name in `place`, with whether it is a folder; None if unreadable.

        Args:
          folder: the folder of the videos.
          place: this folder, or a folder of subtitles in it.
        """
        is_folder: dict[str, bool] = {}
        try:
            with os.scandir(place) as entries:
                for i, entry in enumerate(entries):
                    if i % _PULSE_NAMES == 0:
                        self.pulse()
                    is_folder[entry.name] = entry.is_dir(follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):  # Subs may be a file
            return None
        except OSError as error:
            self._unlisted.add(folder)
            if place != folder:  # the search for videos names their folders
                self._add_problem(place, f"it cannot be listed ({error.strerror or error})")
            return None
        return dict(sorted(is_folder.items()))

    def _is_video(self, name: str) -> bool:
        return os.path.splitext(name)[1].lower() in self._video_suffixes

    def _record_matches(self, folder: Path, place: Path, matches: sidecars.SidecarMatches) -> None:
        """Record the subtitle files in `place` that belong to videos in `folder`."""
        for video, names in matches.of_video.items():
            for name in names:
                if (file := self._find_file(place / name, folder / video)) is not None:
                    self._sidecars.setdefault(folder / video, []).append(file)
        for name, reason in matches.left_out.items():
            video_name = matches.nearest_video.get(name)
            self._add_problem(place / name, reason, folder / video_name if video_name else None)

    def _find_file(self, path: Path, video: Path) -> _SidecarFile | None:
        """Return a subtitle file; None if it is missing, not regular, or not below a root."""
        try:
            if path.parent not in self._real:
                self._real[path.parent] = Path(os.path.realpath(path.parent, strict=True))
            real = self._real[path.parent] / path.name
            if stat.S_ISLNK((status := os.lstat(real)).st_mode):
                real = Path(os.path.realpath(real, strict=True))
                status = os.lstat(real)
        except FileNotFoundError:
            self._add_problem(path, "it is a link to a missing file, or was removed", video)
            return None
        except OSError as error:  # it exists: keep the old cues
            self._add_problem(path, f"it cannot be read ({error.strerror or error})", video)
            return _SidecarFile(path, path, [])
        if not any(real.is_relative_to(root) for root in self._roots):
            self._add_problem(
                path, "it is a link out of the indexed folder, which is not followed", video
            )
        elif not stat.S_ISREG(status.st_mode):
            self._add_problem(path, "it is a folder, pipe, socket or device, not a file", video)
        else:
            numbers = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
            return _SidecarFile(real, path, [READER_VERSION, *numbers])
        return None

    def _plan(self, content: str, paths: Sequence[Path]) -> _PendingTranscript:
        """Return the new transcript of a content, with the sources that must still be read."""
        before = load(self.index, content)
        stored = before or Transcript()
        transcript = Transcript(stored.tracks, [], stored.recognised)
        plan = _PendingTranscript(content, before, transcript, {})
        sources_by_file = {source.file: source for source in stored.files}
        videos_of_file: dict[Path, list[str]] = {}
        for video in paths:
            for file in self._sidecars.get(video, ()):
                if file.path in videos_of_file:  # copies of a video, or links to one file
                    videos_of_file[file.path].append(self._names[video])
                    continue
                videos_of_file[file.path] = [self._names[video]]
                shown = str(file.shown)
                source = sources_by_file.pop(shown, None) or CueSource(shown, [])
                # A copy, because `before` must keep the source unchanged.
                source = dataclasses.replace(source, videos=videos_of_file[file.path])
                if file.stamp and (source.stamp != file.stamp or self.retry and source.problem):
                    source.stamp = file.stamp
                    plan.sources[SubtitleTask(file.path, video)] = source
                transcript.files.append(source)
        if sources_by_file:  # a subtitle file in an offline folder is not missing: keep it
            unreachable = self._unlisted | self._unreachable_folders(content)
            transcript.files += [
                source
                for source in sources_by_file.values()
                if source.file and not unreachable.isdisjoint(Path(source.file).parents)
            ]
        if stored.tracks.stamp != [READER_VERSION] or self.retry and stored.tracks.problem:
            transcript.tracks = dataclasses.replace(stored.tracks, stamp=[READER_VERSION])
            plan.sources[SubtitleTask(paths[0], None)] = transcript.tracks
        return plan

    def _unreachable_folders(self, content: str) -> set[Path]:
        """Return the folders with copies of a content that cannot be reached."""
        folders = set()
        for name in self.index.paths(content):
            path = self._locate(name)
            if split_name(name)[0] in self._offline_roots:
                folders.add(path.parent)
                continue
            try:
                os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                folders.add(path.parent)
        return folders

    def _store_result(self, source: CueSource, subtitles: SubtitleResult) -> None:
        """Store the result of a task in its source."""
        source.problem = subtitles.problem
        if subtitles.is_final:
            source.cues = [
                Cue(float(start), float(end), str(text)) for start, end, text in subtitles.cues
            ]
        else:  # keep the old cues, and read it again in the next run
            source.stamp = []

    def _queue(self, plan: _PendingTranscript) -> None:
        """Queue a transcript to be written if it has changed; add the problems of its sources."""
        transcript, content = plan.transcript, plan.content
        duration = self._durations[content]
        transcript.tracks = _without_late_cues(transcript.tracks, duration)
        transcript.files = [_without_late_cues(file, duration) for file in transcript.files]
        if transcript != plan.before:
            self._changed.append((content, transcript))
            if len(self._changed) >= TRANSCRIPTS_AT_ONCE:
                self._save()
        for source in (transcript.tracks, *transcript.files):
            copies = source.videos or sorted(self.index.paths(content))
            if NOT_TEXT in source.problem and source is transcript.tracks:
                copies = [video for video in copies if not transcript.has_subtitles(video)]
            # Without a copy, another process has just removed the video.
            if source.problem and copies:
                path, place = self._locate(copies[0]), Path(source.file)
                where = "" if source.file else "its subtitle tracks: "
                self._add_problem(place if source.file else path, where + source.problem, path)

    def _save(self) -> None:
        """Write the queued transcripts."""
        if self._changed:
            with self.index.writing() as writer:
                for content, transcript in self._changed:
                    put(writer, content, transcript)
            self._changed.clear()

    def _add_problem(self, path: Path, reason: str, video: Path | None = None) -> None:
        names = [self._shown(place) if place is not None else "" for place in (path, video)]
        self._problems.append(Problem(names[0], reason, names[1]))

    def _shown(self, path: Path) -> str:
        return self.index.roots.name_below(path) or str(path)

    def _finish(self) -> None:
        """Report new problems, and store all of them."""
        before = problems(self.index)
        unreachable = [
            problem for problem in before if split_name(problem.file)[0] in self._offline_roots
        ]
        listed = sorted({*self._problems, *unreachable})
        reported = set(before)
        new = [
            problem
            for problem in listed
            if problem not in reported and problem.reason != sidecars.NO_VIDEO
        ]
        for problem in new[:MAX_LINES]:
            self.report(f"{problem.file}: {problem.reason}")
        if len(new) > MAX_LINES:
            self.report(f"{len(new) - MAX_LINES} more subtitle files are left out: see status")
        if listed != before:
            _write_problems(self.index, listed)
