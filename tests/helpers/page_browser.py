"""Actions and checks of tests that steer the page in chromium."""

import os
import shutil

import page_library
import pytest
from playwright.sync_api import expect

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip

needs_chromium = pytest.mark.skipif(
    not os.path.exists(CHROMIUM),
    reason="the page is tested in chromium, and there is none: apt-get install chromium",
)


def search(page, sentence):
    page.locator("#q").fill(sentence)
    expect(page.locator("#status")).to_contain_text(f"“{sentence}”")


def unfold(page):
    """Shows the filters, which are hidden except for the chips of those in use."""
    expect(page.locator("#filters")).to_be_hidden()
    page.locator("#fold").click()
    expect(page.locator("#filters")).to_be_visible()


def names(page):
    return page.locator("#results .open").all_inner_texts()


def time_of(page):
    return page.evaluate("document.getElementById('player').currentTime")


def is_at(page, seconds, within=1.0):
    """Waits until the video is at an instant, or at most `within` seconds after it."""
    page.wait_for_function(
        """([from, to]) => { const v = document.getElementById('player');
            return v.readyState >= 2 && !v.seeking && v.currentTime >= from - 0.05
                && v.currentTime <= to + 0.01; }""",
        arg=[seconds, seconds + within],
    )


def is_playing(page):
    page.wait_for_function("() => { const v = document.getElementById('player');"
                           " return !v.paused && v.readyState >= 3; }")  # fmt: skip


def shown_colour(page):
    """Return the name of the colour in the corner of the video."""
    pixel = page.evaluate(
        """() => { const pen = document.createElement('canvas').getContext('2d');
            pen.drawImage(document.getElementById('player'), 0, 0);
            return [...pen.getImageData(4, 4, 1, 1).data].slice(0, 3); }"""
    )

    def distance(name):
        return sum((a - b) ** 2 for a, b in zip(pixel, page_library.COLOURS[name], strict=True))

    return min(page_library.COLOURS, key=distance)
