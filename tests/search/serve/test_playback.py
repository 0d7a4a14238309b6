"""Playback of the page in chromium: the frame of each second for files of any timestamps."""

from fractions import Fraction

import av
import numpy as np
import page_browser
import page_library
import pytest
import videos
from av.stream import Disposition
from page_browser import is_at, is_playing, names, search, shown_colour
from playwright.sync_api import expect

from hlformer_jax import video

pytestmark = [page_browser.needs_chromium, pytest.mark.slow]  # each takes seconds


def delayed(source, path, seconds):
    """Copy a video into a file whose timestamps begin at a second."""
    with av.open(str(source)) as old, av.open(str(path), "w") as new:
        stream = old.streams.video[0]
        out = new.add_stream_from_template(stream)
        for packet in old.demux(stream):
            if packet.size:
                packet.pts += round(seconds / packet.time_base)
                packet.dts += round(seconds / packet.time_base)
                packet.stream = out
                new.mux(packet)
    return path


def strip_click(page, second, length):
    box = page.locator("#strip").bounding_box()
    page.locator("#strip").click(position={"x": box["width"] * second / length, "y": 20})


@pytest.mark.parametrize(("suffix", "start"), [(".mkv", 7.5), (".mp4", 1.5)])
def test_file_with_late_timestamps_shows_the_right_seconds(
    opened, url, library, rendered, replaced, tmp_path, suffix, start
):
    path = delayed(rendered / "garden.mp4", tmp_path / f"late{suffix}", start)
    id = replaced("garden", path)
    page = opened(url)
    search(page, "green")
    expect(page.locator("#name")).to_have_text("garden.mp4")
    is_at(page, 3 + start, 0.1)
    assert shown_colour(page) == "green"
    assert page.evaluate("position()") == pytest.approx(3, abs=2e-3)
    strip_click(page, 0.5, 10)
    is_playing(page)
    page.wait_for_function("() => position() > 0.6")
    assert shown_colour(page) == "grey"
    page.get_by_text("Transcript", exact=True).click()
    page.get_by_role("button", name="0:04 the captain's ship").click()
    expect(page.locator("#transcript [aria-current]")).to_contain_text("ship")
    is_at(page, 4 + start)
    page.evaluate("player.pause()")
    at = page.evaluate("position()")
    assert 4 <= at < 5 and shown_colour(page) == "green"
    page.get_by_role("button", name="Copy link").click()
    assert float(page.url.split("&t=")[1]) == pytest.approx(at, abs=2e-3)
    copy = opened(page.url)
    is_at(copy, at + start, 0.1)
    assert shown_colour(copy) == "green"
    copy.get_by_role("button", name="More like this", exact=True).first.click()
    expect(copy.locator("#status")).to_contain_text("like garden.mp4 at 0:04")
    assert library.queries[-1].like == (id, pytest.approx(at, abs=2e-3))


def test_seconds_that_a_player_cannot_reach_are_encoded(opened, url, rendered, replaced, tmp_path):
    # Chromium ends this file at second 10 of its clock, which is second 2.5 of the video.
    replaced("garden", delayed(rendered / "garden.mp4", tmp_path / "late.mp4", 7.5))
    page = opened(url)
    search(page, "red")
    page.locator("#results .open").nth(1).click()
    expect(page.get_by_role("alert")).to_contain_text("encoded anew")
    page.wait_for_function("() => preview && player.readyState > 1 && !player.seeking")
    assert 8 <= page.evaluate("position()") < 9.5 and shown_colour(page) == "red"


def test_sound_before_the_pictures_does_not_move_them(opened, url, replaced, tmp_path):
    times = [4 + k / 10 for k in range(60)]

    def paint(number):
        name = "green" if 30 <= number < 50 else "grey"
        return np.full((180, 320, 3), page_library.COLOURS[name], np.uint8)

    path = videos.write(
        tmp_path / "sound.mp4", frames=60, rate=10, times=times, paint=paint, sound=(0, 10)
    )
    assert video.playback(path).start == pytest.approx(0, abs=0.05)
    replaced("garden", path)
    page = opened(url)
    search(page, "green")
    strip_click(page, 7.5, 10)
    is_at(page, 7.5)
    assert shown_colour(page) == "green"


def test_track_that_the_browser_does_not_play_is_encoded(opened, url, replaced, tmp_path):
    path = tmp_path / "tracks.mkv"
    with av.open(str(path), "w") as container:
        tracks = []
        for name in ("violet", "green"):
            stream = container.add_stream("libx264", rate=10)
            stream.width, stream.height, stream.pix_fmt = 320, 180, "yuv420p"
            tracks.append((stream, np.full((180, 320, 3), page_library.COLOURS[name], np.uint8)))
        tracks[0][0].disposition = Disposition(0)
        tracks[1][0].disposition = Disposition.default
        for index in range(100):
            for stream, image in tracks:
                frame = av.VideoFrame.from_ndarray(image, "rgb24")
                frame.pts, frame.time_base = index, Fraction(1, 10)
                container.mux(stream.encode(frame))
        for stream, _ in tracks:
            container.mux(stream.encode(None))
    assert not video.playback(path).is_same_track
    replaced("garden", path)
    page = opened(url)
    search(page, "green")
    expect(page.get_by_role("alert")).to_contain_text("encoded anew")
    page.wait_for_function("() => preview && player.readyState > 1 && !player.seeking")
    assert 3 <= page.evaluate("position()") < 4.5 and shown_colour(page) == "green"
    page.locator("#results .open").nth(1).click()  # another video is played by itself again
    page.wait_for_function("() => !preview && player.readyState > 1")


def test_frame_that_begins_within_a_millisecond_is_shown(opened, url, replaced, tmp_path):
    def paint(number):
        name = {48: "green", 59: "blue"}.get(number, "grey")
        return np.full((180, 320, 3), page_library.COLOURS[name], np.uint8)

    rate = Fraction(24000, 1001)
    path = videos.write(tmp_path / "film.mp4", frames=60, rate=rate, paint=paint)
    id = replaced("garden", path, duration=float(60 / rate))
    page = opened(f"{url}/#video={id}&t={float(48 / rate):.3f}")  # 2.002 s
    is_at(page, 2.002, 0.01)
    assert shown_colour(page) == "green"
    for second, colour in ((59 / rate, "blue"), (48 / rate, "green")):  # the last frame first
        page.evaluate(f"seek({float(second):.3f})")
        page.wait_for_function("() => !player.seeking && pending === null")
        assert shown_colour(page) == colour


def test_link_opens_a_video_that_is_not_listed(opened, url, library):
    id = library.id("boat")
    for query in ("", "q=grey&folder=trips/K", "q=nothing", "q=red"):
        page = opened(url)
        page.evaluate("PAGE_SIZE = 1")
        page.evaluate(
            "(hash) => { location.hash = hash; }", f"{query}&video={id}&t=8.5".lstrip("&")
        )
        expect(page.locator("#name")).to_have_text("boat ride.mp4")
        is_at(page, 8.5, 0.1)
        assert shown_colour(page) == "blue"
        assert page.url.endswith(f"video={id}&t=8.5")  # also after a reload
        expect(page.locator("#toast")).to_be_empty()
    expect(page.locator("#results .open")).to_have_count(1)
    page.locator("#strip").focus()
    page.keyboard.press("Home")
    is_at(page, 0, 0)
    page.get_by_role("button", name="More results").click()
    expect(page.locator("#results .open")).to_have_count(2)
    while names(page)[-1] != "boat ride.mp4":
        page.get_by_role("button", name="More results").click()
    expect(page.locator("#results .open[aria-current=true]")).to_have_text("boat ride.mp4")
    expect(page.locator("#name")).to_have_text("boat ride.mp4")
    is_at(page, 0, 0)


def test_link_to_an_unknown_video_says_so_and_shows_the_results(opened, url):
    page = opened(url)
    page.expected.append("Failed to load resource")
    page.evaluate("location.hash = 'q=red&video=nowhere&t=3'")
    expect(page.locator("#toast")).to_contain_text("no such video")
    expect(page.locator("#name")).to_have_text(names(page)[0])


def test_page_without_scripts_says_what_it_needs(browser, url):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(url)
    assert "This page needs JavaScript" in page.locator("main").inner_text()  # visible text
    context.close()
