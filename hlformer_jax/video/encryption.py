"""Encrypted recordings: pay television, copy-protected DVDs, and downloads of streaming services.

FFmpeg decodes them without a word, to nothing or to noise. Packets of MP4 have side data if they
are encrypted, tracks of Matroska the name of a key. In transport and programme streams, bits in the
headers say so. Some programs decrypt a stream and keep the bits. Then the pictures in it have
their headers, and are decoded without errors.
"""

import functools
from pathlib import Path

import av
import numpy as np
from av.video.stream import VideoStream

from hlformer_jax.video.faults import fault

ENCRYPTED = "is encrypted (copy protection, or pay television)", "decrypt it, or leave it out"
"""The fault and the advice (see `faults.fault`) for a video that cannot be decrypted here."""

MAX_NOISE_SHARE = 0.01
"""Share of encrypted sectors of a DVD above which its pictures are noise."""

_PLACES, _BYTES_AT_A_PLACE = 64, 2**16
_SECTOR = 2048
_PACKET_SIZES = (188, 192, 204)
_SYNCHRONISED_PACKETS = 8


def is_encrypted(packet: av.Packet) -> bool:
    """Return whether the container says that a packet is encrypted."""
    return packet.has_sidedata("encryption_info") or "enc_key_id" in packet.stream.metadata


_LEAST_CORRUPT, _LEAST_CORRUPT_OF_FEW = 0.1, 0.5
"""Smallest share of corrupt pictures, divided by the share of encrypted packets, of noise.

The second is that of a few pictures, of which one damaged packet spoils several.
"""

_FEW_PICTURES = 30

_CORRUPT_BEFORE_CHECK = 64
"""Number of corrupt pictures after which it is checked whether they are noise."""


class Encryption:
    """Encryption of a stream that is being decoded, by its pictures and the headers of its packets.

    The file is sampled only if that can change the result, and once.
    """

    def __init__(self, path: Path, stream: VideoStream) -> None:
        self._path, self._stream = path, stream
        self._is_programme = stream.container.format.name == "mpeg"
        self._frames = self._corrupt = 0

    @functools.cached_property
    def _stated_share(self) -> float:
        return encrypted_share(self._path, self._stream)

    def add(self, frame: av.VideoFrame) -> None:
        """Add a decoded picture, and check whether it is the last of many corrupt ones.

        Raises:
          VideoError: if the pictures are noise.
        """
        self._frames += 1
        self._corrupt += frame.is_corrupt
        if frame.is_corrupt and self._corrupt % _CORRUPT_BEFORE_CHECK == 0:
            self.check()  # a DVD of noise is not decoded to its end

    def share(self) -> float:
        """Return the share of the packets that are encrypted.

        A programme stream may state encryption after it was decrypted. Then hardly any of its
        pictures is corrupt. Of encrypted ones, many are, and others are lost.
        """
        if self._is_programme and self._frames:
            is_few = self._frames <= _FEW_PICTURES
            least = (_LEAST_CORRUPT_OF_FEW if is_few else _LEAST_CORRUPT) * self._frames
            is_noise = self._corrupt and self._corrupt >= least * self._stated_share
            return self._stated_share if is_noise else 0.0
        return self._stated_share

    def check(self) -> None:
        """Refuse a DVD whose pictures are encrypted.

        Raises:
          VideoError: if they are.
        """
        if self._is_programme and self._corrupt and self.share() > MAX_NOISE_SHARE:
            raise fault(self._path, *ENCRYPTED)


def encrypted_share(path: Path, stream: VideoStream) -> float:
    """Return the share of a stream's packets that are encrypted, at a few places of the file.

    It is 0 except in transport and programme streams. In a programme stream, decrypted packets that
    keep the bits of encryption count too, because only decoding tells them apart.

    Args:
      path: the file.
      stream: its video stream.
    """
    count = {"mpegts": _count_in_transport, "mpeg": _count_in_programme}.get(
        stream.container.format.name
    )
    if count is None:
        return 0.0
    size, counts = path.stat().st_size, np.zeros(4, int)
    step = max(size // _PLACES // _SECTOR * _SECTOR, _BYTES_AT_A_PLACE)
    with open(path, "rb") as file:
        for place in range(0, size, step):
            file.seek(place)
            data = np.frombuffer(file.read(_BYTES_AT_A_PLACE), np.uint8)
            counts += count(data, stream.id)
    total, encrypted, starts, clear_starts = map(int, counts)
    share = encrypted / total if total else 0.0
    return share * (1 - clear_starts / starts) if starts else share


_Counts = tuple[int, int, int, int]
"""Four numbers of packets of a stream: with content; with the bits of encryption; with these bits
and the beginning of a picture; with these bits and the unencrypted header of a picture."""


def _count_in_transport(data: np.ndarray, identifier: int) -> _Counts:
    """Count the packets of a stream."""
    for size in _PACKET_SIZES:
        starts = data[: size * (len(data) // size)].reshape(-1, size) == ord("G")
        if not len(starts):
            continue
        [offsets] = np.nonzero(starts[:_SYNCHRONISED_PACKETS].all(0))
        if len(offsets) and len(starts) > 1:
            padded = data[offsets[0] :]
            packets = padded[: size * (len(padded) // size)].reshape(-1, size)
            heads = packets[:, :4].astype(int)
            is_of_stream = (heads[:, 0] == ord("G")) & (heads[:, 3] & 0x10 > 0)
            is_of_stream &= (heads[:, 1] & 0x1F) << 8 | heads[:, 2] == identifier
            is_encrypted = is_of_stream & (heads[:, 3] & 0xC0 > 0)
            begins = packets[is_encrypted & (heads[:, 1] & 0x40 > 0)]
            clear = sum(map(_has_clear_header, begins))
            return int(is_of_stream.sum()), int(is_encrypted.sum()), len(begins), clear
    return 0, 0, 0, 0


def _has_clear_header(packet: np.ndarray) -> bool:
    """Return whether the content of a transport packet begins with the start code of a header."""
    content = packet[4:].tobytes()
    has_adaptation_field = packet[3] & 0x20 > 0
    return content.startswith(b"\0\0\1", 1 + content[0] if has_adaptation_field else 0)


def _count_in_programme(data: np.ndarray, identifier: int) -> _Counts:
    """Count the sectors of a stream on a DVD."""
    encrypted = total = 0
    for sector in data[: len(data) // _SECTOR * _SECTOR].reshape(-1, _SECTOR):
        head = sector[:32].tobytes()
        packet = head[14 + (head[13] & 7) :]
        is_pack = head.startswith(b"\0\0\1\xba") and head[4] >> 6 == 1
        if is_pack and packet.startswith(bytes((0, 0, 1, identifier & 0xFF))):
            total += 1
            # In MPEG-2, the bits 10 and then those of the encryption; MPEG-1 may have other bytes.
            encrypted += packet[6] >> 4 in (0b1001, 0b1010, 0b1011)
    return total, encrypted, 0, 0
