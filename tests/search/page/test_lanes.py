"""Work in turn: a busy server answers others, and drops what nobody waits for."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import httpx
import page_library
import pytest


def test_a_busy_server_answers_others_and_refuses_more_than_it_can_queue(library):
    video = library.id("garden")
    limits = httpx.Limits(max_connections=40)
    with (
        page_library.running(library) as url,
        httpx.Client(base_url=url, timeout=20, limits=limits) as client,
        ThreadPoolExecutor(25) as others,
    ):
        ask = lambda: client.get("/api/query", params={"q": "red"})
        library.gate.clear()
        try:
            waiting = [others.submit(ask) for _ in range(25)]
            # One runs and sixteen wait; those beyond are told so at once.
            refused = [done.result() for done in itertools.islice(as_completed(waiting, 10), 8)]
            begun = time.monotonic()
            assert client.get("/api/status").status_code == 200
            assert client.get(f"/video/{video}", headers={"Range": "bytes=0-9"}).status_code == 206
            assert client.get(f"/thumbnail/{video}?t=8.5").content[:2] == b"\xff\xd8"
            assert time.monotonic() - begun < 5 and sum(done.done() for done in waiting) == 8
        finally:
            library.gate.set()
        assert [answer.status_code for answer in refused] == [503] * 8
        assert refused[0].headers["retry-after"] == "1" and "too many" in refused[0].text
        assert [done.result().status_code for done in waiting].count(200) == 17


def test_a_search_that_nobody_waits_for_is_dropped(library):
    with page_library.running(library) as url, httpx.Client(base_url=url, timeout=20) as client:
        library.gate.clear()
        library.inside.clear()
        try:
            first = threading.Thread(target=client.get, args=("/api/query?q=first",))
            first.start()
            assert library.inside.wait(10)
            with pytest.raises(httpx.ReadTimeout):
                client.get("/api/query?q=overtaken", timeout=0.3)
            time.sleep(0.5)  # the server looks whether anybody is there every tenth of a second
        finally:
            library.gate.set()
        first.join()
        assert client.get("/api/query?q=last").status_code == 200
    sentences = [asked[0] for asked in library.asked]
    assert "overtaken" not in sentences and sentences[-2:] == ["first", "last"]
