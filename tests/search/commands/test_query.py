"""`query SENTENCE`: the table, the JSON that programs read, filters."""

import json
import os

import archive


def test_query_prints_a_table_with_rank_score_moment_and_file(search, index):
    done = search("query", "blue", f"--index={index}", "--k=2", "--ranker=best_frame")
    lines = done.out.splitlines()
    assert lines[0].split() == ["rank", "score", "moment", "date", "file"]
    rank, score, moment, _, whose, video = lines[1].split()
    assert (rank, score, moment, video) == ("1", "1.000", "0:10–0:14", "trips/c.film")
    assert whose == "(file)"
    assert len(lines) == 3 and not done.errors


def test_query_json_is_exactly_the_list_that_programs_read(search, index):
    done = search("query", "red", f"--index={index}", "--json", "--ranker=best_frame")
    hits = json.loads(done.out)
    fields = {"id", "video", "date", "date_of", "score", "moments"}
    assert [set(hit) for hit in hits] == [fields] * 3
    assert hits[0]["video"] == "a.film"
    assert all(set(m) == {"start", "end", "peak", "score"} for h in hits for m in h["moments"])
    first = hits[0]["moments"][0]
    assert (first["start"], first["end"], first["peak"]) == (5, 8, 6)
    assert hits == sorted(hits, key=lambda hit: -hit["score"])


def test_filters_reach_the_library(search, index):
    done = search("query", "red", f"--index={index}", "--json", "--folder=trips")
    assert [hit["video"] for hit in json.loads(done.out)] == ["trips/c.film"]
    assert (
        json.loads(search("query", "red", f"--index={index}", "--json", "--until=1999-01-01").out)
        == []
    )
    assert (
        "nothing was found" in search("query", "red", f"--index={index}", "--since=2999-01-01").out
    )


def test_a_name_that_is_no_text_is_shown_replaced_and_addressed_by_its_id(
    search, films, index, calls, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    archive.film(films / os.fsdecode(b"caf\xe9") / os.fsdecode(b"\xff.film"), ["yellow"] * 4)
    (films / os.fsdecode(b"bad\xe9.film")).write_bytes(b"broken")
    done = search("index", films, f"--index={index}", "--workers=0")
    asked = search("query", "yellow", f"--index={index}", "--json", "--k=1")
    [hit] = json.loads(asked.out)
    assert hit["video"] == "caf\ufffd/\ufffd.film"
    texts = [done.out, *done.errors, asked.out]
    texts.append(search("query", "yellow", f"--index={index}", "--folder=caf\ufffd").out)
    assert hit["video"] in texts[-1]
    texts += [search("status", f"--index={index}", *more).out for more in ([], ["--json"])]
    assert "bad\ufffd.film" in texts[-2] and "bad\\ufffd.film" in texts[-1]
    for text in texts:
        text.encode()
        assert "\\ud" not in text
    flags = "--start=1", "--end=2", f"--index={index}"
    assert search("cut", hit["id"], *flags).out.encode()
    assert calls.cuts[0][0][0] == films / os.fsdecode(b"caf\xe9/\xff.film")
    assert search("remove", hit["id"], f"--index={index}").status == 0
    assert search("query", os.fsdecode(b"red \xff"), f"--index={index}").status == 0


def test_an_encoder_that_is_gone_is_one_line(search, films, tmp_path):
    folder = tmp_path / "encoder"
    folder.mkdir()
    search("index", films, f"--index={tmp_path / 'index'}", f"--encoder={folder}", "--workers=0")
    folder.rmdir()
    done = search("query", "red", f"--index={tmp_path / 'index'}")
    assert done.status == 1 and "say where it is by --encoder=PATH" in done.errors[0]
