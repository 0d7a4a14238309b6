"""A library of three real videos and its server for each file of tests; pages of a browser.

The library `changing` has films without pictures, and its index can be changed.
"""

import threading

import archive
import page_library
import pytest

from hlformer_jax import search
from hlformer_jax.search.ingest import extract


@pytest.fixture(scope="session")
def rendered(tmp_path_factory):
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def library(rendered):
    return page_library.Library(rendered)


@pytest.fixture(scope="module")
def url(library):
    with page_library.running(library) as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with page_library.client_of(url) as client:
        yield client


@pytest.fixture
def replaced(library):
    """Replaces the file or fields of a video until the test ends, and returns its id."""
    entries = list(library.entries)

    def replace(part, path=None, **fields):
        id = library.id(part)
        if path is not None:
            status = path.stat()
            fields |= {"path": path, "size": status.st_size, "modified": status.st_mtime_ns / 1e9}
        library.change(id, **fields)
        return id

    yield replace
    library.entries = entries


class Encoder(archive.Encoder):
    """An encoder that waits before every batch until its gate is open."""

    def __init__(self):
        super().__init__()
        self.gate, self.inside = threading.Event(), threading.Event()
        self.gate.set()

    def encode_images(self, pixels):
        self.inside.set()
        assert self.gate.wait(20)
        return super().encode_images(pixels)


@pytest.fixture
def changing(index, monkeypatch):
    """A library of the films of `index`, which may be changed in this process."""
    monkeypatch.setattr(extract, "real_video", lambda: archive.VIDEO)
    monkeypatch.setattr(extract, "default_workers", lambda: 0)
    library = search.open(index.directory, encoder=Encoder())
    yield library
    library.encoder.gate.set()


@pytest.fixture(scope="module")
def browser():
    import page_browser  # without Playwright, only these tests fail
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=page_browser.CHROMIUM, args=page_browser.FLAGS
        )
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """Opens pages; after the test, checks that they had only expected errors."""
    faults, expected, contexts = [], [], []

    def open_page(address, width=1280, height=860, scheme="light"):
        contexts.append(
            browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-GB"
            )
        )
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: line.type == "error" and faults.append(line.text))
        page.expected = expected  # parts of errors, which may occur after the test
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not [fault for fault in faults if not any(part in fault for part in expected)]


@pytest.fixture
def page(opened, url):
    return opened(url)
