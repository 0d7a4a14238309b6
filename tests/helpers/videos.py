"""Videos that tests write: a grey level for each frame number, and damaged or unusual files."""

import os
import re
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np
from av.stream import Disposition
from PIL import Image

from hlformer_jax import video

WIDTH, HEIGHT = 64, 48
_STEP = 6
"""Grey levels between two frames: more than the error of a lossy codec."""


def grey(number: int) -> np.ndarray:
    """Return the picture of a frame."""
    return np.full((HEIGHT, WIDTH, 3), 8 + number % 40 * _STEP, np.uint8)


def number(image: np.ndarray) -> int:
    """Return the number of a picture's frame among the first forty."""
    return round((float(image.mean()) - 8) / _STEP)


def quadrants(_: int) -> np.ndarray:
    """Return a picture in red, green / blue, white, which shows how it is turned."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[: HEIGHT // 2, : WIDTH // 2] = (255, 0, 0)
    image[: HEIGHT // 2, WIDTH // 2 :] = (0, 255, 0)
    image[HEIGHT // 2 :, : WIDTH // 2] = (0, 0, 255)
    image[HEIGHT // 2 :, WIDTH // 2 :] = (255, 255, 255)
    return image


def write(
    path: Path,
    codec: str = "libx264",
    *,
    frames: int = 36,
    rate: int = 12,
    times: list[float] | None = None,
    paint=grey,
    pixels: str = "yuv420p",
    matrix: int | None = None,
    options: dict[str, str] | None = None,
    sound: tuple[float, float] | None = None,
    sound_codec: str = "aac",
    sound_rate: int = 8000,
    muxer: dict[str, str] | None = None,
    **settings,
) -> Path:
    """Writes a video by PyAV.

    Args:
      path: the file; its suffix tells the container, or `format` in settings.
      codec: FFmpeg's name of the encoder.
      frames: number of frames.
      rate: frames a second.
      times: seconds of frames, in milliseconds at the finest; by the rate when None.
      paint: the picture of a frame's number, of 8 or 16 bit.
      pixels: pixel format.
      matrix: FFmpeg's number of the colours' matrix; its default when None.
      options: options of the encoder.
      sound: seconds from and until which a 440 Hz tone sounds.
      sound_codec: FFmpeg's name of the encoder of the sound.
      sound_rate: samples a second.
      muxer: options of the container.
      settings: `format` of the container; fields of the codec context, such as max_b_frames.
    """
    tick = Fraction(1, rate) if times is None else Fraction(1, 1000)
    form = settings.pop("format", None)
    with av.open(f"file:{path}", "w", format=form, options=muxer or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        height, width, _ = paint(0).shape
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.codec_context.time_base = tick
        for name, value in settings.items():
            setattr(stream.codec_context, name, value)
        tone = container.add_stream(sound_codec, rate=sound_rate, layout="mono") if sound else None
        if tone is not None and sound_codec != "aac":
            tone.bit_rate = 12_200 if sound_rate == 8000 else 64_000
        for index in range(frames):
            image = paint(index)
            kind = "rgb24" if image.dtype == np.uint8 else "rgb48le"
            frame = av.VideoFrame.from_ndarray(image, kind)
            if matrix is not None:
                frame = frame.reformat(format=pixels, dst_colorspace=matrix)
            frame.pts = index if times is None else round(times[index] * 1000)
            frame.time_base = tick
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if tone is not None:
            start, end = (round(second * sound_rate) for second in sound)
            wave = np.sin(2 * np.pi * 440 * np.arange(end - start) / sound_rate)
            # PCM has a packet for each frame; other encoders cut frames as they need.
            size = sound_rate // 25 if sound_codec.startswith("pcm") else len(wave)
            for place in range(0, len(wave), size):
                samples = wave[None, place : place + size].astype(np.float32)
                piece = av.AudioFrame.from_ndarray(samples, "fltp", "mono")
                piece.sample_rate, piece.time_base = sound_rate, Fraction(1, sound_rate)
                piece.pts = start + place
                container.mux(tone.encode(piece))
            container.mux(tone.encode(None))
    return path


class Track(NamedTuple):
    """An audio track: samples of one or more channels, and its properties in the file."""

    samples: np.ndarray  # float32 [samples] or [channels, samples], between -1 and 1
    rate: int = 16_000
    language: str = ""
    is_default: bool = False
    gap: tuple[float, float] = (0.0, 0.0)  # seconds whose packets are left out
    codec: str = "pcm_s16le"
    start: float = 0.0  # second of the first sample


def write_tracks(path: Path, *tracks: Track, seconds: int = 4, rate: int = 2) -> Path:
    """Write a grey video with audio tracks; as Matroska any codec keeps its samples."""
    with av.open(f"file:{path}", "w") as container:
        film = container.add_stream("libx264", rate=rate)
        film.width, film.height, film.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        streams = []
        for track in tracks:
            samples = np.atleast_2d(track.samples)
            layout = "mono" if len(samples) == 1 else "stereo"
            stream = container.add_stream(track.codec, rate=track.rate, layout=layout)
            stream.disposition = Disposition.default if track.is_default else Disposition(0)
            if track.language:
                stream.metadata["language"] = track.language
            streams.append((track, stream, samples, layout))
        for index in range(rate * seconds):
            frame = av.VideoFrame.from_ndarray(grey(index), "rgb24")
            frame.pts, frame.time_base = index, Fraction(1, rate)
            container.mux(film.encode(frame))
        container.mux(film.encode(None))
        for track, stream, samples, layout in streams:
            block = stream.codec_context.frame_size or 1024
            form = stream.codec_context.format.name
            for first in range(0, samples.shape[1], block):
                piece = av.AudioFrame.from_ndarray(
                    np.ascontiguousarray(samples[:, first : first + block]), "fltp", layout
                )
                piece.sample_rate = track.rate
                piece.pts = first + round(track.start * track.rate)
                piece.time_base = Fraction(1, track.rate)
                resampler = av.AudioResampler(format=form, layout=layout, rate=track.rate)
                _mux_without(container, stream.encode(resampler.resample(piece)[0]), track.gap)
            _mux_without(container, stream.encode(None), track.gap)
    return path


def _mux_without(container, packets, gap: tuple[float, float]) -> None:
    for packet in packets:
        if not gap[0] <= packet.pts * packet.time_base < gap[1]:
            container.mux(packet)


def overwrite_packets(path: Path, first: float, count: int) -> Path:
    """Replace packets of the first audio track, from a second on, by noise."""
    content, noise = bytearray(path.read_bytes()), np.random.default_rng(0)
    with av.open(str(path)) as container:
        for packet in container.demux(container.streams.audio[0]):
            if count and packet.size and packet.pts * packet.time_base >= first:
                place = content.index(bytes(packet), packet.pos)  # packets of silence are all equal
                content[place : place + packet.size] = noise.bytes(packet.size)
                count -= 1
    path.write_bytes(bytes(content))
    return path


def restamped(path: Path, out: Path, late: Callable[[int], float]) -> Path:
    """Copies a video whose n-th packet is shown, but not decoded, `late(n)` seconds later."""
    with av.open(str(path)) as source, av.open(str(out), "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        packets = [packet for packet in source.demux(video=0) if packet.size]
        for place, packet in enumerate(packets):
            packet.pts += round(late(place) / packet.time_base)
            packet.stream = stream
            container.mux(packet)
    return out


def restamped_flv(path: Path, late: Callable[[int], float]) -> Path:
    """Makes the n-th picture of an FLV file shown and decoded `late(n)` seconds later."""
    content, place, count = bytearray(path.read_bytes()), 13, -1  # the first is the codec's header
    while place < len(content):
        if content[place] == 9:
            time = int.from_bytes(content[place + 4 : place + 7], "big") | content[place + 7] << 24
            time = max(time + round(1000 * (late(count) if count >= 0 else 0)), 0)
            content[place + 4 : place + 7] = (time & 0xFFFFFF).to_bytes(3, "big")
            content[place + 7] = time >> 24
            count += 1
        place += 11 + int.from_bytes(content[place + 1 : place + 4], "big") + 4
    path.write_bytes(bytes(content))
    return path


def stamped(path: Path, out: Path, **metadata: str) -> Path:
    """Copies the pictures of a video into a file with this metadata."""
    options = {"movflags": "use_metadata_tags"} if out.suffix in {".mp4", ".mov"} else {}
    with av.open(str(path)) as source, av.open(str(out), "w", options=options) as container:
        container.metadata.update(
            {name.replace("__", "."): text for name, text in metadata.items()}
        )
        stream = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                container.mux(packet)
    return out


def initialisation(folder: Path) -> Path:
    """Write the initialisation segment of a fragmented MP4, as in DASH and HLS."""
    path = write(folder / "a.mp4", muxer={"movflags": "frag_keyframe+empty_moov"})
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"moof") - 4])
    return path


def sound_and_no_picture(folder: Path) -> Path:
    """Write an MP4 with sound, whose video track has no sample."""
    path = write(folder / "a.mp4", sound=(0, 1))
    content = bytearray(path.read_bytes())
    track = content.index(b"vmhd")
    for name, count in ((b"stts", 8), (b"ctts", 8), (b"stss", 8), (b"stsc", 8), (b"stco", 8),
                        (b"stsz", 12)):  # fmt: skip
        place = content.index(name, track) + count
        content[place : place + 4] = bytes(4)
    path.write_bytes(bytes(content))
    return path


def turned(path: Path, matrix: tuple[int, int, int, int]) -> Path:
    """Sets the display matrix a, b, c, d of an MP4 file's first track."""
    content = bytearray(path.read_bytes())
    place = content.index(b"tkhd") + 4 + 40  # version 0
    values = [matrix[0], matrix[1], 0, matrix[2], matrix[3], 0, 0, 0]
    packed = b"".join((value << 16).to_bytes(4, "big", signed=True) for value in values)
    content[place : place + 32] = packed
    path.write_bytes(bytes(content))
    return path


# Damaged and unusual videos


def ordinary(folder, name="a.mp4", **settings):
    return write(folder / name, **settings)


def file_with(content):
    def make(folder):
        path = folder / "a.mp4"
        path.write_bytes(content)
        return path

    return make


def without_index(folder):
    path = ordinary(folder)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b"moov") - 4])
    return path


def sound_alone(folder, name="a.mp4", codec="aac", rate=8000):
    path = folder / name
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, rate), np.float32), "fltp", "mono")
        frame.sample_rate = rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def song_with_a_cover(folder):
    path = sound_alone(folder, "a.mp3", "libmp3lame", 44100)

    def size(number):
        return bytes(number >> shift & 127 for shift in (21, 14, 7, 0))

    cover = b"\0image/jpeg\0\3\0" + video.thumbnail(ordinary(folder), 0, 64)
    picture = b"APIC" + size(len(cover)) + b"\0\0" + cover
    path.write_bytes(b"ID3\4\0\0" + size(len(picture)) + picture + path.read_bytes())
    return path


def no_frame(folder):
    path = folder / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=12)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()
    return path


def unknown_codec(folder):
    path = ordinary(folder)
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz").replace(b"avcC", b"zzzC"))
    return path


def frames_of_noise(folder):
    path = ordinary(folder, codec="mpeg4")
    content = bytearray(path.read_bytes())
    start, end = content.index(b"mdat") + 4, content.index(b"moov") - 4
    content[start:end] = np.random.default_rng(0).bytes(end - start)
    path.write_bytes(bytes(content))
    return path


def pipe(folder):
    os.mkfifo(folder / "a.mp4")
    return folder / "a.mp4"


def link_to(name):
    def make(folder):
        (folder / "a.mp4").symlink_to(name)
        return folder / "a.mp4"

    return make


def folder_named_like_a_video(folder):
    (folder / "a.mp4").mkdir()
    return folder / "a.mp4"


def file_stating_side(side):
    def make(folder):
        path = ordinary(folder, "a.avi", codec="rawvideo", frames=2)
        stated, absurd = struct.pack("<2i", WIDTH, HEIGHT), struct.pack("<2i", side, side)
        path.write_bytes(path.read_bytes().replace(stated, absurd))
        return path

    return make


def file_named_like_an_error(folder):
    path = folder / "a\nerror: all is lost\x1b[31m.mp4"
    path.write_bytes(b"")
    return path


def standing_still(folder):
    path = folder / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=12)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for index in range(6):
            frame = av.VideoFrame.from_ndarray(grey(index), "rgb24").reformat(format="yuvj420p")
            frame.pts, frame.time_base = index, Fraction(1, 12)
            for packet in stream.encode(frame):
                packet.pts = packet.dts = min(packet.pts, 3)
                container.mux(packet)
    return path


def huge_picture(folder):
    path = folder / "a.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=1)
        stream.width, stream.height, stream.pix_fmt = 10_000, 10_000, "yuvj420p"
        frame = av.VideoFrame(10_000, 10_000, "yuvj420p")
        for plane, value in zip(frame.planes, (200, 128, 128), strict=True):
            plane.update(np.full(plane.buffer_size, value, np.uint8))
        frame.pts, frame.time_base = 0, Fraction(1)
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def file_stating_seconds(seconds):
    def make(folder):
        path = ordinary(folder, "a.mkv")
        content = bytearray(path.read_bytes())
        place = content.index(b"\x44\x89\x88") + 3  # Matroska's Duration, a float64 in milliseconds
        content[place : place + 8] = struct.pack(">d", 1000 * seconds)
        path.write_bytes(bytes(content).replace(b"DURATION", b"UNTAGGED"))
        return path

    return make


def two_films(folder):
    """Write a Matroska with videos of one and of three seconds, which states the longer length."""
    path = folder / "two.mkv"
    with av.open(str(path), "w") as container:
        streams = [container.add_stream("libx264", rate=2) for _ in range(2)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for stream, seconds in zip(streams, (1, 3), strict=True):
            for index in range(2 * seconds):
                frame = av.VideoFrame.from_ndarray(grey(index), "rgb24")
                frame.pts, frame.time_base = index, Fraction(1, 2)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return path


def photograph(folder):
    path = folder / "a.mp4"
    path.write_bytes(video.thumbnail(ordinary(folder, "plain.mkv"), 0, 64))
    (folder / "plain.mkv").unlink()
    return path


def cut_off(suffix, **settings):
    def make(folder):
        path = ordinary(folder, f"a.{suffix}", frames=38, **settings)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) * 6 // 10])
        return path

    return make


def noisy(index):
    rng = np.random.default_rng(index)
    return rng.integers(0, 255, (48, 64, 3), np.uint8)


FRONT = {"movflags": "faststart"}


def with_index_in_front(folder):
    plain = ordinary(folder, "plain.mp4", paint=noisy, frames=38)
    path = folder / "a.mp4"
    with av.open(str(plain)) as source, av.open(str(path), "w", options=FRONT) as out:
        stream = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 6 // 10])
    plain.unlink()
    return path


def damaged(folder):
    path = ordinary(folder, codec="libx264", paint=noisy, frames=38, gop_size=6)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 3000] = bytes(3000)
    path.write_bytes(bytes(content))
    return path


def two_recordings(folder):
    path = ordinary(folder, "a.ts", frames=36)
    path.write_bytes(path.read_bytes() * 2)
    return path


def jump_ahead(folder):
    times = [k / 12 for k in range(18)] + [90_000 + k / 12 for k in range(18)]
    return ordinary(folder, "a.mkv", times=times, frames=36)


def encrypted_mp4(folder):
    """Write an MP4 with the encryption of streaming services, which `encv` announces."""
    muxer = {f"encryption_{name}": 16 * "1f" for name in ("key", "kid")}
    return ordinary(folder, muxer={"encryption_scheme": "cenc-aes-ctr", **muxer})


def unknown_encryption(folder):
    """Write an MP4 with an encryption whose data FFmpeg cannot read."""
    path = encrypted_mp4(folder)
    content = path.read_bytes()
    place = content.index(b"senc") + 11  # the number of its entries
    path.write_bytes(content[:place] + bytes([content[place] + 1]) + content[place + 1 :])
    return path


def encrypted_transport_stream(share):
    """Make a transport stream whose pictures are encrypted at its end, as by pay television."""

    def make(folder):
        path = ordinary(folder, "a.ts", paint=noisy)
        content = bytearray(path.read_bytes())
        for place in range(round((1 - share) * len(content) / 188) * 188, len(content), 188):
            is_picture = int.from_bytes(content[place + 1 : place + 3], "big") & 0x1FFF == 256
            if is_picture and content[place + 3] & 0x10:
                first = place + 4 + (content[place + 3] >> 5 & 1) * (1 + content[place + 4])
                content[place + 3] |= 0x80
                content[first : place + 188] = bytes(range(7, 7 + place + 188 - first))
        path.write_bytes(bytes(content))
        return path

    return make


def encrypted_dvd(folder):
    """Write a programme stream of which every second sector is encrypted, as on DVDs."""
    path = ordinary(folder, "a.vob", codec="mpeg2video", rate=25, frames=38, paint=noisy)
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), 4096):
        packet = place + 14 + (content[place + 13] & 7)
        if content[packet : packet + 4] == b"\0\0\1\xe0":
            content[packet + 6] |= 0x10
            content[place + 128 : place + 2048] = np.random.default_rng(place).bytes(1920)
    path.write_bytes(bytes(content))
    return path


def with_bits_of_encryption(path):
    """State that all packets of the pictures are encrypted, in a file that is not."""
    content = bytearray(path.read_bytes())
    if path.suffix == ".ts":
        for place in range(0, len(content), 188):
            is_picture = int.from_bytes(content[place + 1 : place + 3], "big") & 0x1FFF == 256
            content[place + 3] |= 0x80 * is_picture
    else:
        for place in range(0, len(content), 2048):
            packet = place + 14 + (content[place + 13] & 7)
            if content[packet : packet + 4] == b"\0\0\1\xe0":
                content[packet + 6] |= 0x10
    path.write_bytes(bytes(content))
    return path


def stuffed_programme(folder):
    """Write a programme stream with stuffing as in MPEG-1 instead of timestamps."""
    path = ordinary(folder, "a.vob", codec="mpeg2video", rate=25, frames=38, paint=noisy)
    content = bytearray(path.read_bytes())
    for place in range(4096, len(content), 2048):
        header = place + 14 + (content[place + 13] & 7) + 6
        if content[header - 6 : header - 2] == b"\0\0\1\xe0":
            end = header + 3 + content[header + 2]
            content[header:end] = b"\xff" * (end - header - 1) + b"\x0f"
    path.write_bytes(bytes(content))
    return path


def animated_webp(folder):
    pictures = [Image.fromarray(noisy(number)) for number in range(3)]
    path = folder / "a.webp"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=100)
    return path


def playlist(name, content):
    """Make a playlist of a video beside it, which FFmpeg would follow."""

    def make(folder):
        ordinary(folder, "part.mp4")
        (folder / name).write_text(content)
        return folder / name

    return make


PLAYLISTS = {
    "ffconcat": playlist("a.mp4", "ffconcat version 1.0\nfile part.mp4\n"),
    "concat by its suffix": playlist("a.ffconcat", "file part.mp4\n"),
    "HLS": playlist("a.mp4", "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\npart.mp4\n"),
    "HLS by its suffix": playlist("a.m3u8", "\ufeff#EXTM3U\n#EXTINF:3,\nhttp://localhost:1/a.ts\n"),
    "DASH": playlist(
        "a.mp4",
        '<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"'
        ' mediaPresentationDuration="PT3S"><Period><AdaptationSet mimeType="video/mp4">'
        '<Representation id="1" bandwidth="9"><BaseURL>part.mp4</BaseURL></Representation>'
        "</AdaptationSet></Period></MPD>",
    ),
    "DASH by its suffix": playlist("a.mpd", "<MPD/>"),
    "RTSP's description": playlist(
        "a.mp4", "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n"
    ),
    "PLS": playlist("a.mp4", "[playlist]\nFile1=part.mp4\n"),
}

BOX = b"\0\0\0\x10ftypisom\0\0\2\0"

REFUSED = {
    kind: (make, r"not a video|no video|Invalid argument") for kind, make in PLAYLISTS.items()
} | {
    "thousands of empty boxes": (
        file_with(BOX + b"\0\0\0\x08free" * 2000),
        r"not a video|no video",
    ),
    "empty": (file_with(b""), "is empty"),
    "text": (file_with(b"not a video\n" * 50), "not a video that FFmpeg knows"),
    "subtitles": (file_with(b"1\n00:00:01,000 --> 00:00:02,000\nHello\n\n" * 9), "holds no video"),
    "zeros": (file_with(bytes(5000)), "not a video that FFmpeg knows"),
    "noise": (file_with(np.random.default_rng(1).bytes(5000)), "not a video that FFmpeg knows"),
    "only a beginning": (file_with(BOX), "has no index"),
    "MP4 whose end is missing": (without_index, "has no index (moov)"),
    "sound alone": (sound_alone, "sound alone"),
    "song with a cover": (song_with_a_cover, "sound alone"),
    "no frame": (no_frame, "holds no frame"),
    "encrypted MP4": (encrypted_mp4, "is encrypted"),
    "encryption unknown to FFmpeg": (unknown_encryption, "is encrypted"),
    "pay television": (encrypted_transport_stream(1), "is encrypted"),
    "copy-protected DVD": (encrypted_dvd, "is encrypted"),
    "initialisation segment": (initialisation, "is the initialisation segment of a stream"),
    "sound and no picture": (sound_and_no_picture, "holds sound and a video track without a frame"),
    "unknown codec": (unknown_codec, "codec that FFmpeg cannot decode"),
    "frames of noise": (frames_of_noise, "can be decoded"),
    "animated WebP": (animated_webp, "is an animated WebP"),
    "absurd size": (file_stating_side(15_000), "15000 x 15000 pixels"),
    "size beyond FFmpeg's": (file_stating_side(40_000), "can be decoded, or absurdly large ones"),
    "pipe": (pipe, "pipe, socket or device"),
    "dangling link": (link_to("nowhere.mp4"), "is not there"),
    "link to itself": (link_to("a.mp4"), "Too many levels of symbolic links"),
    "not there": (lambda folder: folder / "a.mp4", "is not there"),
    "folder": (folder_named_like_a_video, "is a folder"),
    "name with a newline": (file_named_like_an_error, "is empty"),
}
"""Kinds that cannot be used: their maker, and a part of the reason."""


USED = {
    "MP4 that is cut off": (with_index_in_front, (1.5, 2.4), r"packets|ends at .* of the 3.2 s"),
    "Matroska that is cut off": (
        cut_off("mkv", paint=noisy), (1.5, 2.4), r"ends at .* s of the 3.2 s",
    ),
    "FLV that is cut off": (cut_off("flv", codec="flv", paint=noisy), (1.2, 2.4), "ends at"),
    "damaged in the middle": (damaged, (3, 3.3), r"of its 38 packets are damaged|^$"),
    "two recordings in one": (two_recordings, (5.9, 6.1), "timestamps jump 1 times"),
    "pay television that is encrypted later": (
        encrypted_transport_stream(0.4), (1.5, 2.2), "[34]. % of its packets are encrypted",
    ),
    "timestamps that jump ahead": (jump_ahead, (2.9, 3.1), "timestamps jump 1 times"),
    "another track is longer": (two_films, (0.9, 1.1), "^$"),
    "no length stated": (file_stating_seconds(0), (2.9, 3.1), "^$"),
    "a length of years stated": (
        file_stating_seconds(1e9), (2.9, 3.1), "ends at 3.0 s of the 1000000000.0 s",
    ),
}  # fmt: skip
"""Kinds that can be used in part: their maker, limits of their seconds, and their warning."""


def says(line, reason):
    """Return whether a line contains a reason or matches it as a pattern."""
    return reason in line or re.search(reason, line) is not None
