"""`query SENTENCE`: the table, the JSON that programs read, filters."""

import json


def test_query_prints_a_table_with_rank_score_moment_and_file(search, index):
    done = search("query", "blue", f"--index={index}", "--k=2", "--ranker=best_frame")
    lines = done.out.splitlines()
    assert lines[0].split() == ["rank", "score", "moment", "file"]
    assert lines[1].split() == ["1", "1.000", "0:10–0:14", "trips/c.film"]
    assert len(lines) == 3 and not done.errors


def test_query_json_is_exactly_the_list_that_programs_read(search, index):
    done = search("query", "red", f"--index={index}", "--json", "--ranker=best_frame")
    hits = json.loads(done.out)
    assert [set(hit) for hit in hits] == [{"video", "score", "moments"}] * 3
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


def test_an_encoder_that_is_gone_is_one_line(search, films, tmp_path):
    folder = tmp_path / "encoder"
    folder.mkdir()
    search("index", films, f"--index={tmp_path / 'index'}", f"--encoder={folder}", "--workers=0")
    folder.rmdir()
    done = search("query", "red", f"--index={tmp_path / 'index'}")
    assert done.status == 1 and "say where it is by --encoder=PATH" in done.errors[0]
