"""A library of three real videos for each file of tests, rendered once for all, and its server."""

import page_library
import pytest


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
    with page_library.asking(url) as client:
        yield client
