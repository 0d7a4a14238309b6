"""Transcripts: the cues of each video's subtitles, speech and OCR, as the index keeps them.

    DIR/texts/DIGEST.json             the transcript of one content
    DIR/texts/DIGEST.copy.json        the same bytes, if speech or text was recognised
    DIR/texts/DIGEST.damaged-N.json   a damaged transcript that is kept aside
    DIR/texts/problems.list           the subtitle files that gave nothing, and why

What a video's container holds, and what is recognised, belongs to all copies of the content. A
subtitle file belongs to those copies that it lies beside: copies with other files say other words.

Subtitles can be read again at any time. What was recognised took hours, so it is written twice, and
the whole one of two copies replaces the damaged one. A transcript that is damaged in both is moved
aside and never deleted. One that cannot be read now (an I/O error, missing rights) is not missing:
it stays where it is, and nothing is written in its place.
"""

import contextlib
import dataclasses
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hlformer_jax import files
from hlformer_jax.errors import DamagedError
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.signals.transcript import sidecars
from hlformer_jax.text import printable

READER_VERSION = 2
"""Version of the subtitle readers; what an older one read is read again."""

MAX_LINES = 20
"""Most lines of one run about subtitle files; `status` shows them all."""

_PULSE_NAMES = 1000
"""Names of a folder that are listed between two calls of `pulse`."""

_MISSING = "is missing"
_NOTHING_RECOGNISED = b'"has_recognised": false', b'"recognised": {}'
"""Both stand in a transcript without anything recognised; a damaged one has at least one left."""


class Cue(NamedTuple):
    """Text that is said, shown or written from one second of a video to another."""

    start: float
    end: float
    text: str


RawCue = tuple[float, float, str]
"""A cue of any reader."""


@dataclasses.dataclass
class Source:
    """The cues that were read from one file."""

    file: str  # absolute path, as Python decodes file names; "" for the tracks of the video itself
    stamp: list[int]  # state of the file when it was read; empty: it must be read again
    cues: list[Cue] = dataclasses.field(default_factory=list)
    problem: str = ""  # why there are no cues or not all, as the end of a line about the file
    videos: list[str] | None = None  # index's names of the copies that it is of; None: of all


@dataclasses.dataclass(frozen=True)
class Copies:
    """Some copies of a content, by the index's names of videos: those named, or all others."""

    names: frozenset[str] = frozenset()
    are_others: bool = True

    def __contains__(self, video: str) -> bool:
        return (video in self.names) != self.are_others


@dataclasses.dataclass
class Transcript:
    """The transcript of one content.

    `recognised` has a mapping for "speech" and one for "ocr", with "by" (the model), "cues" and
    whatever else a recogniser keeps.
    """

    tracks: Source = dataclasses.field(default_factory=lambda: Source("", []))
    files: list[Source] = dataclasses.field(default_factory=list)
    recognised: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def subtitles(self) -> list[Cue]:
        """The cues of all subtitles, in order, without repetitions."""
        return sorted({*self.tracks.cues, *(cue for file in self.files for cue in file.cues)})

    def cues(self, video: str) -> list[Cue]:
        """Return the cues of one copy: speech counts only where that has no subtitles.

        Args:
          video: the index's name of the copy.
        """
        return self._cues(
            [file for file in self.files if file.videos is None or video in file.videos]
        )

    def by_copies(self) -> list[tuple[Copies, list[Cue]]]:
        """Return the cues of all copies; those with the same cues are together."""
        shared = [file for file in self.files if file.videos is None]
        files_by_video: dict[str, list[Source]] = {}
        for file in self.files:
            for video in file.videos or ():
                files_by_video.setdefault(video, []).append(file)
        others = self._cues(shared)
        names_by_cues: dict[tuple[Cue, ...], list[str]] = {tuple(others): []}
        for video, own in files_by_video.items():
            names_by_cues.setdefault(tuple(self._cues([*shared, *own])), []).append(video)
        same_as_others = names_by_cues.pop(tuple(others))
        named = files_by_video.keys() - same_as_others
        return [(Copies(frozenset(named)), others)] + [
            (Copies(frozenset(names), False), [*cues]) for cues, names in names_by_cues.items()
        ]

    def _cues(self, files: Iterable[Source]) -> list[Cue]:
        subtitles = sorted({*self.tracks.cues, *(cue for file in files for cue in file.cues)})
        recognised = [
            cue
            for kind, recognition in self.recognised.items()
            if not (kind == "speech" and subtitles)
            for cue in recognition["cues"]
        ]
        return sorted([*subtitles, *recognised])


class SubtitleTask(NamedTuple):
    """A subtitle file that a process reads, or a video with subtitle tracks."""

    path: Path
    video: Path | None  # to which the subtitle file belongs; None: `path` is a video


class Subtitles(NamedTuple):
    """The result of a task."""

    path: SubtitleTask
    cues: Sequence[RawCue]
    problem: str  # "" if all is well
    is_final: bool  # whether reading the unchanged file again would give the same


class Reader(NamedTuple):
    """Functions that read subtitles: those of `video.subtitles`, or a test's.

    `tracks` takes a video; `file` a subtitle file and its video. Both return an iterable of cues,
    whose attribute `warnings`, if it has one, says what could not be read.
    """

    suffixes: Iterable[str]  # of subtitle files, in lower case
    tracks: Callable[[Path], Iterable[RawCue]]
    file: Callable[[Path, Path | None], Iterable[RawCue]]
    video_suffixes: Iterable[str] = ()  # of videos, indexed or not, whose subtitles are their own


# Files


class _Stored(NamedTuple):
    """One file of a transcript, as it was found."""

    path: Path
    raw: bytes | None  # None where it is missing or cannot be read
    error: str = ""  # "", "is missing", "is damaged (…)" or "cannot be read (…)"
    transcript: Transcript | None = None  # None where it is not whole, or was not parsed

    @property
    def is_whole(self) -> bool:
        return not self.error

    @property
    def is_missing(self) -> bool:
        return self.error == _MISSING

    @property
    def is_unreadable(self) -> bool:
        return self.raw is None and not self.is_missing

    @property
    def has_nothing_recognised(self) -> bool:
        return self.raw is not None and any(text in self.raw for text in _NOTHING_RECOGNISED)


def load(index: Index, content: str) -> Transcript | None:
    """Load the transcript of a content, from its copy where it must be; None if there is none.

    Raises:
      DamagedError: when it is damaged or cannot be read, and so is its copy.
    """
    stored = _look(index.text(content))
    if stored.transcript is None:
        copy = _look(index.text_copy(content))
        if copy.transcript is not None:
            return copy.transcript
        if stored.is_missing and copy.is_missing:
            return None
        stored = copy if stored.is_missing else stored
        raise DamagedError(f"{stored.path} {stored.error}")
    return stored.transcript


def save(index: Index, content: str, transcript: Transcript) -> None:
    """Write the transcript of a content, twice if something was recognised; under the lock."""
    as_json = {
        "content": content,
        "has_recognised": bool(transcript.recognised),
        "tracks": vars(transcript.tracks),
        "files": [vars(file) for file in transcript.files],
        "recognised": transcript.recognised,
    }
    raw = storage.seal(as_json)
    files.write_bytes(index.text(content), raw)
    if transcript.recognised:
        files.write_bytes(index.text_copy(content), raw)


def _look(path: Path, parse: bool = True) -> _Stored:
    try:
        raw = files.read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return _Stored(path, None, _MISSING)
    except OSError as error:
        return _Stored(path, None, f"cannot be read ({error.strerror or error})")
    try:
        if not parse:
            storage.check_seal(raw)
            return _Stored(path, raw)
        return _Stored(path, raw, "", _parsed(storage.unseal(raw)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:80]
        return _Stored(path, raw, f"is damaged ({reason})")


def _parsed(fields: Mapping[str, Any]) -> Transcript:
    def cues(fields: Iterable[Any]) -> list[Cue]:
        return [Cue(float(start), float(end), str(text)) for start, end, text in fields]

    def source(fields: Mapping[str, Any]) -> Source:
        stamp = [int(number) for number in fields["stamp"]]
        videos = fields.get("videos")  # missing in an older version
        own = None if videos is None else [str(video) for video in videos]
        return Source(str(fields["file"]), stamp, cues(fields["cues"]), str(fields["problem"]), own)

    recognised = {
        str(kind): {**recognition, "by": str(recognition["by"]), "cues": cues(recognition["cues"])}
        for kind, recognition in fields.get("recognised", {}).items()
    }
    if "files" not in fields:  # of an older version: its subtitles are read again
        tracks, older_files = (
            Source("", [], cues(fields["inside"])),
            Source("", [], cues(fields["cues"])),
        )
        return Transcript(tracks, [older_files], recognised)
    return Transcript(source(fields["tracks"]), [*map(source, fields["files"])], recognised)


def mend(index: Index, content: str, report: Callable[[str], None]) -> Transcript | None:
    """Load a transcript and make its two copies whole again; under the lock.

    Returns:
      The transcript; None if there is none, or nothing of it can be saved: then it is kept aside
      if something may have been recognised in it.

    Raises:
      DamagedError: when it cannot be read now, so that nothing may be written in its place.
    """
    stored = _look(index.text(content))
    if stored.transcript is not None and not stored.transcript.recognised:
        return stored.transcript
    copy = _look(index.text_copy(content))
    if stored.transcript is not None:
        if copy.is_unreadable:
            report(printable(f"{copy.path} {copy.error}: it is left as it is"))
        elif copy.raw != stored.raw:
            assert stored.raw is not None
            if copy.raw is not None and copy.transcript is None:
                report(printable(f"{copy.path} {copy.error}: it is made anew from the other copy"))
            files.write_bytes(copy.path, stored.raw)
        return stored.transcript
    if copy.transcript is not None:
        if stored.is_unreadable:
            report(
                printable(f"{stored.path} {stored.error}: it is left as it is, and its copy used")
            )
        else:
            assert copy.raw is not None
            report(printable(f"{stored.path} {stored.error}: it is made anew from its copy"))
            files.write_bytes(stored.path, copy.raw)
        return copy.transcript
    if unreadable := [part for part in (stored, copy) if part.is_unreadable]:
        raise DamagedError(
            f"{unreadable[0].path} {unreadable[0].error}: it is left as it is, and read again by"
            " the next index: check the disk and the rights"
        )
    for part in (stored, copy):
        if part.is_missing:
            continue
        if copy.is_missing and part.has_nothing_recognised:
            report(printable(f"{part.path} {part.error}: it is made anew"))
        else:
            aside = _move_aside(index, content, part.path)
            report(printable(f"{part.path} {part.error}: {_remedy(index, content, aside)}"))
    return None


def _move_aside(index: Index, content: str, path: Path) -> Path:
    """Rename a damaged transcript to the first free name of its content's damaged ones."""
    numbers = [_ASIDE.fullmatch(aside.name) for aside in kept_aside(index)]
    used_numbers = [int(match[2]) for match in numbers if match and match[1] == content]
    place = path.with_name(f"{content}.damaged-{max(used_numbers, default=0) + 1}.json")
    os.rename(path, place)
    return place


def _remedy(index: Index, content: str, aside: Path) -> str:
    names = sorted(
        name for name, record in index.manifest.videos.items() if record.content == content
    )
    video = names[0] if names else "its video"
    return (
        f"it is kept as {aside.name}; what was recognised in {video} must be recognised again by"
        " transcribe"
    )


_ASIDE = re.compile(r"([0-9a-f]{64})\.damaged-([0-9]+)\.json")


def kept_aside(index: Index) -> list[Path]:
    """Return the damaged transcripts that were kept aside, sorted by name.

    Raises:
      OSError: when the folder of the transcripts cannot be listed.
    """
    folder = index.directory / "texts"
    with contextlib.suppress(FileNotFoundError):
        return [folder / name for name in sorted(os.listdir(folder)) if _ASIDE.fullmatch(name)]
    return []


class Damage(NamedTuple):
    """A file of transcripts that is not whole."""

    line: str
    is_mended: bool  # whether `index` mends it


def damaged(index: Index) -> dict[str, Damage]:
    """Find the transcripts that are damaged or cannot be read, by the name of the file.

    Reads them through and compares their digests, without parsing them.
    """
    damage: dict[str, Damage] = {}
    for content in index.contents():
        stored = _look(index.text(content), parse=False)
        if stored.is_whole and stored.has_nothing_recognised:
            continue
        copy = _look(index.text_copy(content), parse=False)
        some_whole = stored.is_whole or copy.is_whole
        for part in (stored, copy):
            # A transcript may have no copy, and a content no transcript yet.
            if part.is_whole or part.is_missing and not some_whole:
                continue
            remedy, mended = "index the folder again to make it anew", True
            if part.is_unreadable:
                remedy, mended = "check the disk and the rights", False
            elif not some_whole and not (copy.is_missing and part.has_nothing_recognised):
                remedy = "index the folder again, and transcribe: what was recognised may be lost"
                mended = False
            damage[part.path.name] = Damage(f"{part.path} {part.error}: {remedy}", mended)
    try:
        for path in kept_aside(index):
            line = f"{path} is a damaged transcript: transcribe again, then delete it"
            damage[path.name] = Damage(line, False)
    except OSError as error:
        folder = index.directory / "texts"
        damage["texts"] = Damage(f"{folder} cannot be read ({error.strerror or error})", False)
    try:
        problems(index)
    except DamagedError as error:
        line = f"{error}: index the folder again to make it anew"
        damage[_problems_path(index).name] = Damage(line, True)
    return damage


# Problems


class Problem(NamedTuple):
    """A subtitle file of which nothing, or not all, is searched."""

    file: str  # as the index names files (`Index.name_below`)
    reason: str
    video: str = ""  # the video that it belongs to, or whose name its own begins with


def problems(index: Index) -> list[Problem]:
    """Return the subtitle files of which nothing or not all is searched, as of the last run.

    Raises:
      DamagedError: when their list is damaged or cannot be read.
    """
    return _read_problems(_problems_path(index))


def _problems_path(index: Index) -> Path:
    return index.directory / "texts" / "problems.list"


def _read_problems(path: Path) -> list[Problem]:
    try:
        listed = storage.unseal(files.read_bytes(path))["problems"]
        return [Problem(*map(str, fields)) for fields in listed]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError):
        raise DamagedError(f"{path} is damaged") from None


def _write_problems(index: Index, found: Sequence[Problem]) -> None:
    path = _problems_path(index)
    if found:
        files.write_bytes(path, storage.seal({"problems": [list(problem) for problem in found]}))
    else:
        files.discard(path)


# Bringing transcripts up to date


def videos(index: Index) -> dict[str, list[Path]]:
    """Return the files of each indexed content that are there, by content."""
    paths: dict[str, list[Path]] = {}
    for name, record in sorted(index.manifest.videos.items()):
        if record.indexed and _is_file(path := index.path(name)):
            paths.setdefault(record.content, []).append(path)
    return paths


def _is_file(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(os.stat(path).st_mode)
    return False


def update(
    index: Index,
    reader: Reader,
    read: Callable[[Sequence[SubtitleTask]], Iterable[Subtitles]],
    report: Callable[[str], None],
    retry: bool = False,
    pulse: Callable[[], None] = lambda: None,
) -> None:
    """Bring the transcripts of all videos that are there up to date; under the lock.

    Args:
      index: the index.
      reader: says which suffixes files of subtitles and of videos have.
      read: reads subtitles, in processes or in this one, in any order.
      report: takes a line for each subtitle file that gives nothing and did not before.
      retry: reads again what failed before, changed or not.
      pulse: is called at least every second or so; when it raises, whole transcripts are kept.
    """
    _Update(index, reader, read, report, retry, pulse).perform()


class _Beside(NamedTuple):
    """A subtitle file of a video, and its state."""

    path: Path  # without links
    shown: Path  # as it was found
    stamp: list[int]


class _Waiting(NamedTuple):
    """A transcript of which something must be read, and the sources of the tasks that do so."""

    content: str
    before: Transcript | None
    transcript: Transcript
    sources: dict[SubtitleTask, Source]  # those that are not read yet


@dataclasses.dataclass
class _Update:
    """One run of `update`."""

    index: Index
    reader: Reader
    read: Callable[[Sequence[SubtitleTask]], Iterable[Subtitles]]
    report: Callable[[str], None]
    retry: bool
    pulse: Callable[[], None]

    def __post_init__(self) -> None:
        self._suffixes = frozenset(self.reader.suffixes)
        self._video_suffixes = frozenset(self.reader.video_suffixes)
        self._roots = [Path(os.path.realpath(root)) for root in self.index.roots.values()]
        self._away = {name for name in self.index.roots if not self.index.is_there(name)}
        self._problems: list[Problem] = []
        self._beside: dict[Path, list[_Beside]] = {}  # by video
        self._unlisted: set[Path] = set()  # folders of videos with a listing that failed
        self._real: dict[Path, Path] = {}  # folders without links
        self._names = {self.index.path(name): name for name in self.index.manifest.videos}

    def perform(self) -> None:
        videos_by_content = videos(self.index)
        self._list_folders(videos_by_content)
        waiting: dict[SubtitleTask, _Waiting] = {}
        for content, paths in videos_by_content.items():
            self.pulse()
            plan = self._plan(content, paths)
            if plan is not None and plan.sources:
                waiting |= dict.fromkeys(plan.sources, plan)
            elif plan is not None:
                self._keep(plan)
        for subtitles in self.read(list(waiting)) if waiting else ():
            self.pulse()
            plan = waiting[subtitles.path]
            self._take(plan.sources.pop(subtitles.path), subtitles)
            if not plan.sources:
                self._keep(plan)
        self._finish()

    def _list_folders(self, videos_by_content: Mapping[str, Sequence[Path]]) -> None:
        """Find the subtitle files of all videos; each folder is listed once."""
        folders: dict[Path, set[str]] = {
            path.parent: set() for paths in videos_by_content.values() for path in paths
        }
        for name in self.index.manifest.videos:
            path = self.index.path(name)
            if path.parent in folders:
                folders[path.parent].add(path.name)
        for folder, names in sorted(folders.items()):
            self.pulse()
            self._list(folder, names)

    def _list(self, folder: Path, video_names: Iterable[str]) -> None:
        if (entries := self._entries(folder, folder)) is None:
            self._unlisted.add(folder)
            return
        names = list(entries)
        stems = sidecars.Names({*video_names, *filter(self._is_video, names)})
        listed = sidecars.subtitle_names(names, self._suffixes)
        self._enter(folder, folder, sidecars.match(stems, listed, self._suffixes))
        for name in names:
            if sidecars.fold(name) in sidecars.FOLDERS:
                self._list_subtitles(folder, folder / name, stems)

    def _list_subtitles(self, folder: Path, subtitle_folder: Path, stems: sidecars.Names) -> None:
        """Find the subtitle files in a folder of subtitles, and in its folders of single videos."""
        if (entries := self._entries(folder, subtitle_folder)) is None:
            return
        videos_there = sidecars.Names(filter(self._is_video, entries))
        listed = [
            name
            for name in sidecars.subtitle_names(entries, self._suffixes)
            if not videos_there.longest(Path(name).stem)[0]  # listed with those videos
        ]
        self._enter(folder, subtitle_folder, sidecars.match(stems, listed, self._suffixes, True))
        for name in (name for name, is_folder in entries.items() if is_folder):
            children = self._entries(folder, subtitle_folder / name)
            names = sidecars.subtitle_names(children or (), self._suffixes)
            owners = stems.exactly(name)
            self._enter(
                folder, subtitle_folder / name, sidecars.match_all(owners, names, self._suffixes)
            )

    def _entries(self, folder: Path, place: Path) -> dict[str, bool] | None:
        """Return the names in `place`, and whether each is a folder; None if they are not known."""
        is_folder: dict[str, bool] = {}
        try:
            with os.scandir(place) as entries:
                for i, entry in enumerate(entries):
                    if i % _PULSE_NAMES == 0:
                        self.pulse()
                    is_folder[entry.name] = entry.is_dir(follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):  # a file of the name Subs
            return None
        except OSError as error:
            self._unlisted.add(folder)
            self._add_problem(place, f"it cannot be listed ({error.strerror or error})")
            return None
        return dict(sorted(is_folder.items()))

    def _is_video(self, name: str) -> bool:
        return os.path.splitext(name)[1].lower() in self._video_suffixes

    def _enter(self, folder: Path, place: Path, matches: sidecars.Matches) -> None:
        """Note the subtitle files in `place` that belong to videos in `folder`."""
        for video, names in matches.of_video.items():
            for name in names:
                if (file := self._checked(place / name, folder / video)) is not None:
                    self._beside.setdefault(folder / video, []).append(file)
        for name, reason in matches.left_out.items():
            video_name = matches.near.get(name)
            self._add_problem(place / name, reason, folder / video_name if video_name else None)

    def _checked(self, path: Path, video: Path) -> _Beside | None:
        """Return a subtitle file unless it is gone, no regular file, or not below a root."""
        try:
            if path.parent not in self._real:
                self._real[path.parent] = Path(os.path.realpath(path.parent, strict=True))
            real = self._real[path.parent] / path.name
            if stat.S_ISLNK((status := os.lstat(real)).st_mode):
                real = Path(os.path.realpath(real, strict=True))
                status = os.lstat(real)
        except FileNotFoundError:
            self._add_problem(path, "it is a link to nothing, or not there any more", video)
            return None
        except OSError as error:  # it is there: what it gave before stays
            self._add_problem(path, f"it cannot be read ({error.strerror or error})", video)
            return _Beside(path, path, [])
        if not any(real.is_relative_to(root) for root in self._roots):
            self._add_problem(path, "it is a link out of the indexed folder: not followed", video)
        elif not stat.S_ISREG(status.st_mode):
            self._add_problem(path, "it is a folder, pipe, socket or device, no file", video)
        else:
            numbers = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
            return _Beside(real, path, [READER_VERSION, *numbers])
        return None

    def _plan(self, content: str, paths: Sequence[Path]) -> _Waiting | None:
        """Find out what of a transcript must be read; None if it must stay as it is."""
        try:
            before = mend(self.index, content, self.report)
        except DamagedError as error:
            self.report(printable(str(error)))
            return None
        stored = before or Transcript()
        transcript = Transcript(stored.tracks, [], stored.recognised)
        plan = _Waiting(content, before, transcript, {})
        sources_by_file = {source.file: source for source in stored.files}
        taken: dict[Path, list[str]] = {}  # the videos of each file
        for video in paths:
            for file in self._beside.get(video, ()):
                if file.path in taken:  # copies of a video, or links to one file
                    taken[file.path].append(self._names[video])
                    continue
                taken[file.path] = [self._names[video]]
                source = sources_by_file.pop(str(file.shown), None) or Source(str(file.shown), [])
                # Not changed in place: `before` has the source as it was.
                source = dataclasses.replace(source, videos=taken[file.path])
                if file.stamp and (source.stamp != file.stamp or self.retry and source.problem):
                    source.stamp = file.stamp
                    plan.sources[SubtitleTask(file.path, video)] = source
                transcript.files.append(source)
        # A subtitle file beside a copy of the video that cannot be reached now is not gone.
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
        """Return the folders with a copy of a video that cannot be looked at now."""
        folders = set()
        for name in self.index.paths(content):
            path = self.index.path(name)
            if storage.split_name(name)[0] in self._away:
                folders.add(path.parent)
                continue
            try:
                os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                folders.add(path.parent)
        return folders

    def _take(self, source: Source, subtitles: Subtitles) -> None:
        """Put the result of a task into the source that it is of."""
        source.problem = subtitles.problem
        if subtitles.is_final:
            source.cues = [
                Cue(float(start), float(end), str(text)) for start, end, text in subtitles.cues
            ]
        else:  # what it gave before stays, and it is read again the next time
            source.stamp = []

    def _keep(self, plan: _Waiting) -> None:
        """Write a transcript if it has changed, and note the problems of its sources."""
        transcript, content = plan.transcript, plan.content
        if transcript != plan.before:
            save(self.index, content, transcript)
        copies = sorted(self.index.paths(content))
        for source in (transcript.tracks, *transcript.files):
            if source.problem:
                path, place = self.index.path((source.videos or copies)[0]), Path(source.file)
                where = "" if source.file else "its subtitle tracks: "
                self._add_problem(place if source.file else path, where + source.problem, path)

    def _add_problem(self, path: Path, reason: str, video: Path | None = None) -> None:
        names = [self._shown(place) if place is not None else "" for place in (path, video)]
        self._problems.append(Problem(names[0], reason, names[1]))

    def _shown(self, path: Path) -> str:
        return self.index.name_below(path) or str(path)

    def _finish(self) -> None:
        """Report the problems that are new, and write them all down."""
        before: list[Problem] = []
        try:
            before = problems(self.index)
        except DamagedError as error:
            self.report(printable(f"{error}: it is made anew"))
        unreachable = [
            problem for problem in before if storage.split_name(problem.file)[0] in self._away
        ]
        listed = sorted({*self._problems, *unreachable})
        known = set(before)
        new = [
            problem
            for problem in listed
            if problem not in known and problem.reason != sidecars.NO_VIDEO
        ]
        for problem in new[:MAX_LINES]:
            self.report(printable(f"{problem.file}: {problem.reason}"))
        if len(new) > MAX_LINES:
            self.report(f"{len(new) - MAX_LINES} more subtitle files are left out: see status")
        if listed != before:
            _write_problems(self.index, listed)
