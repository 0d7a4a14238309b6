"""The videos of an index at one time, and warnings about those that cannot be searched."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int

from hlformer_jax import files
from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.search.index import Entry, Index, Record, Stamp, find_missing, split_name
from hlformer_jax.search.index.disk import find_disk_problem
from hlformer_jax.search.signals.postgres import StoreRanker
from hlformer_jax.search.signals.protocol import Scope, Signal
from hlformer_jax.search.signals.visual import VisualSignal
from hlformer_jax.text import counted, legible


@dataclasses.dataclass
class Snapshot:
    """The videos of an index at one time, and the signals that search them."""

    state: tuple[int, int]
    """State of the index (`Index.state`)."""
    index: Index
    videos: list[Entry]
    """The indexed videos."""
    contents: list[Record]
    """A record of each content."""
    content_of: Int[np.ndarray, " V"]
    """Position of each video's content."""
    signals: dict[str, Signal]
    damaged: dict[str, str]
    """A line for each content whose embeddings are damaged."""
    missing: set[int]
    """Positions of the videos whose files were missing at the last check."""

    @property
    def visual(self) -> VisualSignal:
        """The signal that searches frames."""
        visual = self.signals[VisualSignal.name]
        assert isinstance(visual, VisualSignal)
        return visual

    def check_missing(self, all_videos: bool = False) -> None:
        """Check again whether the files of missing videos, or of all videos, exist."""
        positions = range(len(self.videos)) if all_videos else sorted(self.missing)
        names = {self.videos[position].video: position for position in positions}
        paths = {name: self.videos[position].path for name, position in names.items()}
        self.missing = {names[name] for name in find_missing(paths)}

    def scope(self, passing: Bool[np.ndarray, " V"], unreadable: Collection[str] = ()) -> Scope:
        """Return the videos that pass filters, have a file, and can be read."""
        allowed = passing.copy()
        allowed[list(self.missing)] = False
        digests = [record.content for record in self.contents]
        left_out = self.damaged.keys() | unreadable
        allowed &= ~np.isin(self.content_of, [i for i, x in enumerate(digests) if x in left_out])
        return Scope(self.videos, digests, self.content_of, allowed)

    def warnings(
        self, passing: Bool[np.ndarray, " V"], unreadable_contents: Mapping[str, str] = {}
    ) -> list[str]:
        """Return lines on videos that pass the filters but cannot be searched.

        Args:
          passing: the videos that pass the filters.
          unreadable_contents: a line for each content that could not be read.
        """
        lines = list(self.index.notes)
        missing = [self.videos[i].video for i in sorted(self.missing) if passing[i]]
        for name, root in self.index.roots.items():
            elsewhere = [video for video in missing if split_name(video)[0] != name]
            if len(elsewhere) < len(missing) and files.is_gone(root, follow=True):
                missing = elsewhere
                lines.append(
                    f"{root} is missing, so its videos are left out: mount its disk, or, if the"
                    " folder has moved, index its new path as the moved root"
                )
        unreadable = self.index.unreadable(missing)
        offline = sorted({*missing} - {*unreadable})
        lines += self._left_out(offline, "offline", "check whether a disk is unplugged")
        advice = "check the rights of its folder, and the disk"
        lines += self._left_out(unreadable, "unreadable", advice)
        if unlisted := self.index.unlisted:
            more = f" (and {len(unlisted) - 1} more)" if unlisted[1:] else ""
            lines.append(
                f"videos may be missing: the last indexing run reported {unlisted[0]}{more}"
            )
        calibrated = self.visual.calibrated
        frames = sum(record.frames for record in self.contents)
        if calibrated is not None and frames > 2 * calibrated.frames:
            lines.append(
                f"the match threshold was calibrated with {calibrated.frames} frames, but"
                f" the index now has {frames}, so more absent things reach it: calibrate it"
                " again"
            )
        if damaged := {**self.damaged, **unreadable_contents}:
            lines.append(str(DamagedError.from_contents(damaged)))
        if isinstance(self.visual.ranker, StoreRanker):
            absent = self.visual.ranker.absent()
            videos = [
                video.video for i, video in enumerate(self.videos)
                if passing[i] and video.content in absent
            ]  # fmt: skip
            lines += self._left_out(videos, "not in the store", "upload the index again")
        return lines + [note for signal in self.signals.values() for note in signal.notes]

    def _left_out(self, videos: Sequence[str], state: str, advice: str) -> list[str]:
        """Return a line on videos that are left out because of their state, if there are any."""
        if not videos:
            return []
        verb = "are" if len(videos) > 1 else "is"
        return [
            f"{len(videos)} of {len(self.videos)} videos {verb} {state} and left out"
            f" ({_example(videos)}): {advice}"
        ]

    def describe_changed(self, positions: Sequence[int]) -> list[str]:
        """Return a line on videos whose files have another size or time than when indexed."""
        changed = []
        for entry in (self.videos[position] for position in positions):
            try:
                stamp = Stamp.from_status(entry.path.stat())
            except OSError:  # noticed by the next query
                continue
            if stamp.size != entry.size or abs(stamp.modified_ns / 1e9 - entry.modified) > 1e-3:
                changed.append(entry.video)
        if not changed:
            return []
        verb = "have" if len(changed) > 1 else "has"
        return [
            f"{len(changed)} of these videos {verb} another size or time than when indexed"
            f" ({_example(changed)}), so their moments may be wrong: index the folder again"
        ]


def _example(videos: Sequence[str]) -> str:
    """Return the name of the first of some videos, and whether there are others."""
    return f"{legible(videos[0])!r}{' and others' if len(videos) > 1 else ''}"


def empty_error(index: Index) -> SearchError:
    """Return the error for an index without an indexed video."""
    return SearchError(f"{index.directory} has no indexed video: {_why_empty(index)}")


def _why_empty(index: Index) -> str:
    """Return why an index has no indexed video, and what to do."""
    failed = {name: record.reason for name, record in index.videos.items() if not record.indexed}
    if failed:
        name, reason = min(failed.items())
        count = counted(len(failed), "file")
        return f"{count} could not be read, for example {legible(name)!r} ({reason})"
    if unlisted := index.unlisted:
        return f"the last indexing run reported {unlisted[0]}"
    if removed := index.excluded:
        return f"{len(removed)} removed videos stay out until they are added again"
    if files.is_locked(index.directory):
        return "an indexing run has not stored its first video yet: wait for it"
    problem = find_disk_problem(index.directory) or "index its folder again"
    return f"the last indexing run ended before it stored a video; {problem}"
