"""Resets of a file's clock, as in two recordings that were joined, and seconds across them.

After a reset, timestamps begin again, so that several pictures and sounds have the same timestamp.
Seconds continue: a recording begins when the pictures of the one before it end, as in sampling.

A file of at most `MAX_BYTES_SCANNED` is read in full (its packets, without decoding). A larger one,
which takes a minute to read from some disks, is examined at `_PLACES` places, and in full between
the first two, after the last, and where the clock is slow. If a reset is found, it is read in full.
A reset is missed only if the clock goes on as before within a 1,024th of the file, or if it is set
back by less than half the time between two places (2 s in a recording of an hour).
"""

import contextlib
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from hlformer_jax.video.faults import until_damage
from hlformer_jax.video.packets import (
    LONGEST_GAP,
    WITHOUT_INDEX,
    Timestamps,
    packets_after_seek,
    read_packets,
)

MAX_BYTES_SCANNED = 2**27
"""Largest file, in bytes, that is always read in full: a second or two from a disk."""

_PLACES = 1024

DISORDER = Fraction(2)
"""Seconds up to which a frame that comes too late is dropped; more is a jump back of the clock."""


@dataclass
class Recording:
    """A part of a file in which the clock is steady; timestamps in ticks of the video stream."""

    first: int  # byte of its first video packet
    last: int  # byte of its last video packet
    start: int  # timestamp of its first picture
    end: int  # timestamp at which its last picture ends
    shift: Fraction = Fraction(0)  # seconds to add to its timestamps


class Recordings:
    """The recordings in a file, found from the packets of its video stream in order.

    Args:
      stream: the video stream.
      period: usual distance of two frames, in seconds.
    """

    def __init__(self, stream: VideoStream, period: Fraction) -> None:
        self._unit = stream.time_base or Fraction(1, 90_000)
        self._period = round(period / self._unit)
        self._sent: int | None = None  # decoding time of the packet before
        self._shown = 0  # latest presentation time in the recording
        self._delay = 0  # its first presentation time minus its first decoding time
        self._recordings: list[Recording] = []

    def add(self, packet: av.Packet) -> int:
        """Add the next packet and return the number of its recording, from 0."""
        stamp = packet.dts if packet.pts is None else packet.pts
        sent = stamp if packet.dts is None else packet.dts
        if stamp is None or sent is None:
            if self._sent is None:
                return 0
            sent = self._sent + self._period
            stamp = sent + self._delay
        end = stamp + (packet.duration or self._period)
        # Matroska has no decoding times, but a keyframe is shown after all pictures before it.
        steps = [] if self._sent is None else [sent - self._sent]
        steps += [stamp - self._shown] if steps and packet.is_keyframe else []
        if not steps or not all(is_steady(step * self._unit) for step in steps):
            place = packet.pos
            if place is None:
                place = self._recordings[-1].last + 1 if self._recordings else 0
            self._recordings.append(Recording(place, place, stamp, end))
            self._shown, self._delay = stamp, stamp - sent
        recording, self._sent, self._shown = self._recordings[-1], sent, max(self._shown, stamp)
        recording.last = max(recording.last, packet.pos or 0)
        recording.start = min(recording.start, stamp)
        recording.end = max(recording.end, end)
        return len(self._recordings) - 1

    def finish(self) -> tuple[Recording, ...]:
        """Return the recordings with their shifts."""
        for before, recording in zip(self._recordings, self._recordings[1:], strict=False):
            recording.shift = before.shift + (before.end - recording.start) * self._unit
        return tuple(self._recordings)


def is_steady(step: Fraction) -> bool:
    """Return whether a clock that passes this many seconds between two packets was not reset."""
    return -DISORDER <= step <= LONGEST_GAP


_STEP_BACK = Fraction(1, 2)
"""Seconds by which a timestamp must be before the one before it to be of the next recording, if the
place of its packet is between the pictures of two recordings."""


class Shifts:
    """The shifts of the packets of one stream, in the order of the file.

    Args:
      recordings: the recordings in the file, at least one.
    """

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._recordings = recordings
        self._index = 0
        self._second: Fraction | None = None  # timestamp of the packet before

    def next(self, place: int, second: Fraction) -> Fraction:
        """Return the seconds to add to the timestamps of the next packet.

        Args:
          place: byte of the packet.
          second: timestamp of the packet, in seconds.
        """
        first = max(sum(recording.first <= place for recording in self._recordings) - 1, 0)
        last = first + (place > self._recordings[first].last and first + 1 < len(self._recordings))
        step = Fraction(0) if self._second is None else second - self._second
        is_next = self._index == first and not -_STEP_BACK <= step <= LONGEST_GAP
        self._index = min(max(self._index + is_next, first), last)
        self._second = second
        return self._recordings[self._index].shift


def shifted(packets: Iterator[av.Packet], recordings: Sequence[Recording]) -> Iterator[av.Packet]:
    """Yield the packets of one stream with timestamps that continue after a reset.

    Args:
      packets: the packets of any stream, from the start of the file.
      recordings: the recordings in the file.
    """
    if len(recordings) < 2:
        yield from packets
        return
    shifts, place = Shifts(recordings), 0
    for packet in packets:
        place = place if packet.pos is None else packet.pos
        stamp, tick = packet.dts if packet.pts is None else packet.pts, packet.time_base
        if stamp is not None and tick:
            ticks = round(shifts.next(place, stamp * tick) / tick)
            packet.pts = None if packet.pts is None else packet.pts + ticks
            packet.dts = None if packet.dts is None else packet.dts + ticks
        yield packet


def find_recordings(
    path: Path, container: InputContainer, stream: VideoStream, period: Fraction
) -> tuple[Recording, ...]:
    """Return the recordings in a file that has no index, or several as joined Matroska files have.

    For other files none are returned. A large file with a steady clock is not read in full; for it
    none are returned either.

    Args:
      path: the file.
      container: the newly opened file, of which packets are read.
      stream: the video stream.
      period: usual distance of two frames, in seconds.

    Raises:
      OSError: if the disk fails.
    """
    if container.format.name not in WITHOUT_INDEX:
        if container.format.name != "matroska,webm" or not _is_joined_matroska(path):
            return ()
    elif container.size > MAX_BYTES_SCANNED:
        if _is_steady_at_places(container, stream):
            return ()
        with until_damage():  # then read from the current position
            container.seek(0, unsupported_byte_offset=True)
    recordings = Recordings(stream, period)
    with until_damage():
        for packet in Timestamps(read_packets(container, stream), stream, period):
            recordings.add(packet)
    return recordings.finish()


_MATROSKA, _SEGMENT = 0x1A45DFA3, 0x18538067
"""Names of the elements at the start of a Matroska file: its header, and all the rest."""


def _is_joined_matroska(path: Path) -> bool:
    """Return whether another Matroska file follows the first in a file."""
    with contextlib.suppress(EOFError), until_damage(), open(path, "rb") as file:
        name = 0
        while name != _SEGMENT:
            name, size = _number(file)[0], _number(file)
            value = size[0] & ((1 << 7 * size[1]) - 1)  # all ones: up to the end of the file
            file.seek(value, os.SEEK_CUR)
        return _number(file)[0] == _MATROSKA
    return False


def _number(file: BinaryIO) -> tuple[int, int]:
    """Read a number of Matroska with the bits that state its length; return it and its length.

    Raises:
      EOFError: if there is none.
    """
    first = file.read(1)
    if not first or not first[0]:
        raise EOFError
    length = 9 - first[0].bit_length()
    return int.from_bytes(first + file.read(length - 1), "big"), length


def _is_steady_at_places(container: InputContainer, stream: VideoStream) -> bool:
    """Return whether timestamps rise from place to place, and in the parts read in full."""
    unit = stream.time_base or Fraction(1, 90_000)
    places: list[tuple[int, int]] = []  # byte and timestamp
    reached = -1  # byte of the last packet that was read
    for number in range(_PLACES):
        place = container.size * number // _PLACES
        if place > reached:
            packet = next(_sent(container, stream, place), None)
            if packet is None:  # no picture follows
                break
            reached = packet[0]
            places.append((place, packet[1]))
    steps = [after[1] - before[1] for before, after in zip(places, places[1:], strict=False)]
    if not steps or not all(0 <= step * unit <= LONGEST_GAP for step in steps):
        return False
    usual = statistics.median(steps)
    steps = [0, *steps[1:], 0]
    ends = [*(place for place, _ in places[1:]), container.size]
    for (place, last), end, step in zip(places, ends, steps, strict=True):
        if step < usual / 2:
            for byte, stamp in _sent(container, stream, place):
                if not is_steady((stamp - last) * unit):
                    return False
                last = stamp
                if byte >= end:
                    break
    return True


def _sent(container: InputContainer, stream: VideoStream, place: int) -> Iterator[tuple[int, int]]:
    """Yield the byte and the decoding time of the packets from a byte of a file on."""
    with until_damage():
        container.seek(place, unsupported_byte_offset=True)
        for packet in packets_after_seek(container, stream):
            if packet.dts is not None:
                place = max(place, packet.pos or 0)
                yield place, packet.dts
