"""The demo, made and asked: what a person sees who tries the search first."""

import json
import os
import shutil

import page_library
import pytest

from hlformer_jax import search
from hlformer_jax.retrieval.localisation import intersection_over_union
from hlformer_jax.search import captions, demo
from hlformer_jax.search.evaluation import evaluate

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "demo"
    demo.make(out, tell=lambda line: None)
    return out


def test_sentences_find_their_video_and_their_moment(made):
    asked = captions.read(made / "captions.jsonl")
    videos = {path.relative_to(made / "videos").as_posix() for path in made.rglob("*.mp4")}
    assert {caption.video for caption in asked} <= videos
    metrics = evaluate(search.open(made / "index", ranker="best_frame"), asked)
    assert metrics["R@1"] > 40 and metrics["R@5"] > 80  # chance is 4 and 21
    assert metrics["IoU 0.5"] > 60  # a moment is a sixth of its video


def test_a_second_time_nothing_is_made_anew(made):
    parts = ("videos", "encoder", "index/videos")
    times = lambda: {
        path: path.stat().st_mtime_ns
        for part in parts
        for path in (made / part).rglob("*")
        if path.is_file()
    }
    before = times()
    demo.make(made, tell=lambda line: None)
    assert times() == before


@pytest.mark.skipif(not os.path.exists(CHROMIUM), reason="there is no chromium: apt-get install it")
def test_the_page_plays_the_moment_that_was_asked_for(made, tmp_path):
    from playwright.sync_api import expect, sync_playwright

    library = search.open(made / "index", ranker="best_frame")
    asked, moment = next(
        (caption, hit.moments[0])
        for caption in captions.read(made / "captions.jsonl")
        if (hit := library.query(caption.sentence, k=1)[0]).video == caption.video
        and intersection_over_union(hit.moments[0], caption.start, caption.end) > 0.7
    )
    pictures = os.environ.get("HLFORMER_SCREENSHOTS", tmp_path)
    faults = []
    with page_library.running(library) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860}, locale="en-GB")
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(url)
        page.locator("#q").fill(asked.sentence)
        first = page.locator("#results .open").first
        expect(first).to_contain_text(asked.video.split("/")[-1], timeout=30_000)
        page.keyboard.press("Enter")
        position = lambda: page.evaluate("document.getElementById('player').currentTime")
        for _ in range(100):
            page.wait_for_timeout(100)
            if (played := position()) > moment.start:
                break
        assert 0 < played - moment.start < 3  # it plays on while it is asked
        page.wait_for_timeout(500)
        page.screenshot(path=f"{pictures}/demo.png")
        browser.close()
    assert faults == []


def test_the_captions_are_lines_that_the_other_commands_read(made):
    for line in (made / "captions.jsonl").read_text().splitlines():
        assert set(json.loads(line)) == {"video", "sentence", "start", "end"}
