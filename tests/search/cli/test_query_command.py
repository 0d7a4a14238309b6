"""The command query: its table, its JSON and its filters."""

import json

from hlformer_jax.search.query import library
from hlformer_jax.search.serve import schemas
from hlformer_jax.search.signals import visual


def test_query_reports_copies_sequences_and_no_match(ask, films, monkeypatch):
    monkeypatch.setattr(visual, "MIN_FRAMES_FOR_THRESHOLD", 0)
    (films / "z.film").write_bytes((films / "b.film").read_bytes())
    assert ask("index", films).status == 0
    done = ask("query", "green", "--k=1")
    assert done.out.splitlines()[1].endswith("b.film (and 1 of the same content)")
    done = ask("query", "red", "--then=black", "--not=white", "--within=3s")
    assert done.status == 0 and "a.film" in done.out.splitlines()[1]
    [hit] = json.loads(ask("query", "green", "--k=1", "--json").out)
    assert hit["copies"] == ["z.film"] and hit["is_match"] in (True, False)
    done = ask("query", "red", "--k=1", "--offset=1")
    assert done.out.splitlines()[1].split()[0] == "2"
    assert "no video reaches the score 2" in ask("query", "red", "--min-score=2").out
    assert ask("query", "red", "--offset=9").out == "no results: there are only 3\n"
    done = ask("query", "red", "--offset=9", "--json")
    assert json.loads(done.out) == [] and done.errors == ["no results: there are only 3"]
    done = ask("query", "white")
    assert done.errors == ["no good match: these results are the nearest, but none stands out"]
    assert ask("query", "white", "--json").errors == done.errors


def test_query_prints_matching_passages(ask, films, index):
    words = "1\n00:00:12,000 --> 00:00:14,000\nThe captain\u2019s <i>ship</i>\n"
    (films / "b.srt").write_text(words)
    assert ask("index", films).status == 0
    done = ask("query", "a ship", "--k=1", "--signals=transcript")
    assert done.out.splitlines()[1].split()[2:4] == ["0:12–0:14", "transcript"]
    assert done.out.splitlines()[2].strip() == "0:12 “The captain’s ship”"
    hits = json.loads(ask("query", "a ship", "--json").out)
    [hit] = [hit for hit in hits if hit["passages"]]
    assert hit["passages"] == [{"start": 12, "end": 14, "text": "The captain’s ship"}]
    text = next((index / "texts").glob("*.vectors"))
    text.write_bytes(b"{}")
    done = ask("verify")
    assert done.status == 1 and text.name in done.out


def test_query_prints_a_table_or_json(ask):
    done = ask("query", "blue", "--k=2", "--ranker=best_frame")
    lines = done.out.splitlines()
    assert lines[0].split() == ["rank", "score", "moment", "date", "file"]
    rank, score, moment, _, date_source, video = lines[1].split()
    assert (rank, score, moment, video) == ("1", "1.000", "0:10–0:14", "trips/c.film")
    assert date_source == "(file)"
    assert len(lines) == 3 and not done.errors
    done = ask("query", "red", "--json", "--ranker=best_frame")
    hits = json.loads(done.out)
    fields = {*schemas.Result.model_fields} - {"folder", "duration", "times", "scores"}
    assert [set(hit) for hit in hits] == [fields] * 3
    assert hits[0]["video"] == "a.film"
    assert all(set(m) == {"start", "end", "peak", "score"} for h in hits for m in h["moments"])
    first = hits[0]["moments"][0]
    assert (first["start"], first["end"], first["peak"]) == (5, 8, 6)
    assert hits == sorted(hits, key=lambda hit: -hit["score"])


def test_filters_reach_the_library(ask, index):

    def names(*flags):
        hits = json.loads(ask("query", "red", "--json", *flags).out)
        return {hit["video"] for hit in hits}

    assert names("--folder=trips") == {"trips/c.film"} and names("--until=1999-01-01") == set()
    assert "no results" in ask("query", "red", "--since=2999-01-01").out
    assert names("--longer=0:17") == {"b.film", "trips/c.film"}
    assert names("--shorter=16s") == {"a.film"}
    done = ask("tag", "a.film", "trips/c.film", "--add=Oma", "--add=favourite")
    assert done.out.splitlines() == ["a.film: Oma, favourite", "trips/c.film: Oma, favourite"]
    assert names("--tag=oma") == {"a.film", "trips/c.film"}
    ask("tag", "a.film", "--drop=favourite")
    assert names("--tag=oma", "--tag=favourite") == {"trips/c.film"}
    assert ask("tag").out.startswith("a.film: Oma\ntrips/c.film: ")
    assert ask("tag", "--add=x").status == 1
    assert "did you mean 'Oma'" in ask("query", "red", "--tag=Opa").errors[0]
    [hit] = library.Library(index).search("red", tags="oma", shorter=17.0)
    assert hit.tags == ("Oma",) and hit.as_json()["tags"] == ["Oma"]
