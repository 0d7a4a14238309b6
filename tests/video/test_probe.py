"""What a file states about itself."""

from datetime import UTC, datetime

import av
import pytest
import videos

from hlformer_jax import video


@pytest.mark.parametrize(
    ("name", "codec", "shown"),
    [
        ("a.mp4", "libx264", "h264"),
        ("a.mkv", "mpeg4", "mpeg4"),
        ("a.webm", "libvpx-vp9", "vp9"),
        ("a.avi", "mpeg4", "mpeg4"),
        ("a.ts", "libx264", "h264"),
        ("a.h264", "libx264", "h264"),  # states no length: its packets are counted
        ("a.gif", "gif", "gif"),
    ],
)
def test_length_size_rate_and_codec_are_those_written(tmp_path, name, codec, shown):
    pixels = "rgb8" if codec == "gif" else "yuv420p"
    path = videos.write(tmp_path / name, codec, rate=10, frames=25, pixels=pixels)
    info = video.probe(path)
    assert info.duration == pytest.approx(2.5, abs=2e-3)
    assert (info.width, info.height, info.codec) == (64, 48, shown)
    assert name == "a.h264" or info.rate == pytest.approx(10, rel=1e-3)


def test_start_is_the_timestamp_of_second_0(tmp_path):
    path = videos.write(tmp_path / "a.mkv", times=[7 + k / 4 for k in range(8)], frames=8)
    info = video.probe(path)
    assert info.start == pytest.approx(7)
    assert info.duration == pytest.approx(2, abs=0.3)  # the muxer's length of the last frame


def test_a_programme_stream_is_as_long_as_its_packets(tmp_path):
    path = videos.write(tmp_path / "a.mpg", "mpeg2video", rate=25, frames=60, max_b_frames=2)
    assert video.probe(path).duration == pytest.approx(2.4)


def test_probing_decodes_one_frame_alone(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=60)
    content = bytearray(path.read_bytes())
    middle = content.index(b"moov") // 2
    content[middle : middle + 200] = bytes(200)
    path.write_bytes(bytes(content))
    assert video.probe(path).duration == pytest.approx(5)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize(
    ("stated", "date"),
    [
        ("2021-05-06T07:08:09Z", datetime(2021, 5, 6, 7, 8, 9, tzinfo=UTC)),
        ("1970-01-01T00:00:01Z", None),  # a clock that was never set
        ("yesterday", None),
        (None, None),
    ],
)
def test_the_recording_date_is_the_container_s(tmp_path, name, stated, date):
    plain, dated = videos.write(tmp_path / "plain.mp4"), tmp_path / name
    with av.open(str(plain)) as source, av.open(str(dated), "w") as out:
        if stated:
            out.metadata["creation_time"] = stated
        copy = out.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = copy
                out.mux(packet)
    assert video.probe(dated).recorded == (date.timestamp() if date else 0)
