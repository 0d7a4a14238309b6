"""Encrypted recordings: pay television, copy-protected DVDs, and downloads of streaming services.

FFmpeg decodes them without a word, to nothing or to noise. Packets of MP4 have side data if they
are encrypted, tracks of Matroska the name of a key. In transport and programme streams, bits in the
headers say so.
"""

from pathlib import Path

import av
import numpy as np
from av.video.stream import VideoStream

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


def encrypted_share(path: Path, stream: VideoStream) -> float:
    """Return the share of a stream's packets that are encrypted, at a few places of the file.

    It is 0 except in transport and programme streams.

    Args:
      path: the file.
      stream: its video stream.
    """
    count = {"mpegts": _count_in_transport, "mpeg": _count_in_programme}.get(
        stream.container.format.name
    )
    if count is None:
        return 0.0
    size, encrypted, total = path.stat().st_size, 0, 0
    step = max(size // _PLACES // _SECTOR * _SECTOR, _BYTES_AT_A_PLACE)
    with open(path, "rb") as file:
        for place in range(0, size, step):
            file.seek(place)
            data = np.frombuffer(file.read(_BYTES_AT_A_PLACE), np.uint8)
            encrypted_here, total_here = count(data, stream.id)
            encrypted, total = encrypted + encrypted_here, total + total_here
    return encrypted / total if total else 0.0


def _count_in_transport(data: np.ndarray, identifier: int) -> tuple[int, int]:
    """Return the numbers of encrypted packets and of all packets with content of a stream."""
    for size in _PACKET_SIZES:
        starts = data[: size * (len(data) // size)].reshape(-1, size) == ord("G")
        if not len(starts):
            continue
        [offsets] = np.nonzero(starts[:_SYNCHRONISED_PACKETS].all(0))
        if len(offsets) and len(starts) > 1:
            padded = data[offsets[0] :]
            heads = padded[: size * (len(padded) // size)].reshape(-1, size)[:, :4].astype(int)
            is_of_stream = (heads[:, 0] == ord("G")) & (heads[:, 3] & 0x10 > 0)
            is_of_stream &= (heads[:, 1] & 0x1F) << 8 | heads[:, 2] == identifier
            return int(np.sum(is_of_stream & (heads[:, 3] & 0xC0 > 0))), int(is_of_stream.sum())
    return 0, 0


def _count_in_programme(data: np.ndarray, identifier: int) -> tuple[int, int]:
    """Return the numbers of encrypted sectors and of all sectors of a stream on a DVD."""
    encrypted = total = 0
    for sector in data[: len(data) // _SECTOR * _SECTOR].reshape(-1, _SECTOR):
        head = sector[:32].tobytes()
        packet = head[14 + (head[13] & 7) :]
        is_pack = head.startswith(b"\0\0\1\xba") and head[4] >> 6 == 1
        if is_pack and packet.startswith(bytes((0, 0, 1, identifier & 0xFF))):
            total += 1
            # In MPEG-2, the bits 10 and then those of the encryption; MPEG-1 may have other bytes.
            encrypted += packet[6] >> 4 in (0b1001, 0b1010, 0b1011)
    return encrypted, total
