"""`status`: counts, and what failed and why."""

import json


def test_status_lists_what_failed_and_why(search, films, index):
    (films / "bad\nname.film").write_bytes(b"broken")
    done = search("index", films, f"--index={index}", "--workers=0")
    assert done.status == 0 and "1 failed" in done.out
    assert len(done.errors) == 1 and "is no film" in done.errors[0]
    out = search("status", f"--index={index}").out
    assert "videos    3, 0:54 long" in out and "failed    1" in out and "is no film" in out
    status = json.loads(search("status", f"--index={index}", "--json").out)
    assert status["videos"] == 3 and status["failures"][0]["video"] == "bad\nname.film"
    retried = search("index", films, f"--index={index}", "--workers=0", "--retry")
    assert "1 failed" in retried.out
    skipped = search("index", films, f"--index={index}", "--workers=0")
    assert "1 failed before" in skipped.out and not skipped.errors
