"""Passages: stored with transcripts, found by words and embeddings, fused with visual results."""

import errno
import json
import os
import time
from types import SimpleNamespace

import archive
import numpy as np
import pytest

from hlformer_jax import files
from hlformer_jax.data.transforms import unit
from hlformer_jax.errors import QueryError, SearchError
from hlformer_jax.search.index import Entry, Index, packed
from hlformer_jax.search.query import search as search_module
from hlformer_jax.search.query.fusion import Ranking, fuse, split
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.signals import rankers
from hlformer_jax.search.signals.protocol import Group, Scope
from hlformer_jax.search.signals.transcript import passages, transcripts
from hlformer_jax.search.signals.transcript.transcripts import SubtitleReader
from hlformer_jax.search.signals.transcript.words import normalise, spaced

WORDS = {
    "a.film": [(1, 3, "Good morning, captain"), (3.5, 5, "the ships are leaving")],
    "b.film": [(2, 4, "the weather"), (12, 15, "a captain's ship, and the harbour")],
}


def write(films, words):
    for name, cues in words.items():
        (films / name).with_suffix(".en.srt").write_text(json.dumps(cues))


@pytest.fixture
def index(tmp_path, films):
    write(films, WORDS)
    index = archive.create(tmp_path / "index", films)
    archive.fill(index, video=archive.SUBTITLED)
    return index


def test_words_are_found_in_their_passages(index):
    second, first = archive.opened(index).query("the captain ships", signals="transcript")
    assert (first.video, second.video) == ("b.film", "a.film")
    assert first.passages[0][:3] == (12, 15, "a captain's ship, and the harbour")
    # Consecutive cues are one passage; words match by their stems in any case.
    assert second.moments[0][:3] == (1, 5, 1) and second.signals == ("transcript",)
    assert (
        (second.score, first.score)
        == (1 / 61, 1 / 62)
        == (second.passages[0].score, first.passages[0].score)
    )
    assert archive.opened(index).query("recorded", signals="transcript")[0].video == "trips/c.film"
    assert (
        archive.opened(index).query("CAPTAINS", signals="transcript", k=1, offset=1, folder="")
        != []
    )
    # The transcript of the complete video.
    library = archive.opened(index)
    assert library.transcript(first.id) == WORDS["b.film"]
    assert library.transcript(second.id) == WORDS["a.film"]
    # Articles alone do not match.
    assert archive.opened(index).query("the red weather balloon of a", signals="transcript") == []
    assert archive.opened(index).query('"NEAR( OR *', signals="transcript") == []


@pytest.mark.parametrize(
    ("window", "share", "order"),
    [
        # 1/61 + 1/62 + 1/63 …: 4 by 61 and 63, 9 by 61, 2 by 62 and 7 by 62 alone, 1 by 64.
        (1, 0.6, [4, 9, 2, 7, 1]),
        (1, 1 - 2**-52, [4, 9, 7, 2, 1]),  # a transcript with all words wins
        (4, 0.6, [4, 7, 9, 2, 1]),  # 7 by 62 and 63
    ],
)
def test_fusion_is_the_sum_of_reciprocal_ranks(window, share, order):
    by_frames = [Group(position, 1 / (1 + position)) for position in (4, 2, 7, 1)]
    by_words = [
        Group(position, 1.0, certainty=certainty)
        for position, certainty in ((9, 1.0), (7, share), (4, 0.5))
    ]
    visual, transcript = Ranking(by_frames, False), Ranking(by_words, True)
    ranking = fuse([visual, transcript], window)
    assert [group.position for group in ranking] == order
    assert ranking[0] == by_frames[0]  # with the score of the first ranking
    assert fuse([visual, Ranking([], True)], window) == by_frames


def test_every_selective_ranking_counts_in_full():
    rankings = [
        Ranking([Group(position, 0.0) for position in (1, 2, 3)], False),
        Ranking([Group(3, 0.0), Group(2, 0.0)], True),
        Ranking([Group(2, 0.0)], True),
    ]
    # 2: 1/61 + 1/62; 3: 1/61; 1: 1/61 as the first of the videos that match in no other way.
    assert [group.position for group in fuse(rankings, 1)] == [2, 3, 1]


def test_late_rank_does_not_lower_the_best_one():
    rankings = [Ranking([Group(1, 0.0), Group(2, 0.0)], False), Ranking([Group(3, 0.0)], False)]
    rankings.append(Ranking([Group(3, 0.0), Group(2, 0.0), Group(1, 0.0)], False))
    # No further ranks are added: 1 and 3 count as first, 2 as second.
    assert [group.position for group in fuse(rankings, 0)] == [1, 3, 2]


def test_window_of_the_fusion_is_a_tenth_of_the_contents():
    count = 25  # so 3 ranks of the signal that ranks all videos are added
    entries = [Entry(*len(Entry._fields) * [f"{i}"]) for i in range(count)]
    names = [entry.video for entry in entries]
    scope = Scope(entries, names, np.arange(count), np.ones(count, bool))
    order = [0, 1, 6, 5, 2, 3, 4, *range(7, count)]

    def matches(positions, is_selective):
        groups = [Group(position, 0.0) for position in positions]
        return SimpleNamespace(is_selective=is_selective, rank=lambda k, _: groups[:k])

    signals = {"visual": matches(order, False), "transcript": matches([5, 6], True)}
    search = search_module.Search(tuple(signals), signals["visual"], signals)
    places = search.rank(Query("x", k=3), scope)
    # 6: 1/62 + 1/63; 5: 1/61, which 1/64 would lift above it; 0: 1/61.
    assert [place.group.position for place in places] == [6, 5, 0]


def test_groups_are_split_by_their_matches():
    entries = [Entry(*len(Entry._fields) * [video]) for video in "abcd"]
    scope = Scope(entries, ["x"], np.zeros(4, np.int64), np.ones(4, bool))
    visual = Ranking([Group(0, 0.5, ("b", "c", "d"))], False)
    matched = Ranking([Group(2, 0.2), Group(1, 0.1)], True)
    split_visual, unchanged = split([visual, matched], scope)
    # The best match first, videos without a match last.
    assert split_visual.groups == [Group(2, 0.5), Group(1, 0.5), Group(0, 0.5, ("d",))]
    assert unchanged == matched and not split_visual.is_selective


def test_text_matches_by_picture_and_transcript(index):
    write(index.root, {"a.film": [(6, 8, "red alert")]})
    archive.fill(index, video=archive.SUBTITLED)
    hits = archive.opened(index).query("red")
    assert hits[0].video == "a.film" and "transcript" in hits[0].signals and hits.good
    assert [hit.video for hit in hits if hit.passages] == ["a.film"]
    visual = archive.opened(index).query("red", signals="visual")
    assert not any(hit.passages for hit in visual) and visual[0].score == hits[0].score


@pytest.mark.parametrize("probable", [False, True])
def test_results_do_not_depend_on_their_number(index, monkeypatch, probable):
    monkeypatch.setattr(search_module, "WINDOW", 1)
    write(index.root, {"a.film": [(6, 8, "green light")]})
    archive.fill(index, video=archive.SUBTITLED)
    archived = archive.opened(index, encoder=archive.Encoder(probable=probable))
    # The best visual match is b.film.
    [hit] = archived.query("green", k=1, min_score=0.5)
    assert hit.video == "a.film" and "transcript" in hit.signals and hit.is_match
    assert hit.moments[0][:2] == (6, 8)
    visual = {hit.video: hit.score for hit in archived.query("green", signals="visual")}
    assert hit.score == visual["a.film"]
    pages = [archived.query("green", k=1, offset=i)[0].as_json() for i in range(3)]
    assert pages == [hit.as_json() for hit in archived.query("green")]


def test_texts_follow_their_files(index, films):

    def find_videos(words):
        return [hit.video for hit in archive.opened(index).query(words, signals="transcript")]

    before = archive.everything(index.directory)
    archive.fill(index, video=archive.SUBTITLED)
    assert before == archive.everything(index.directory)  # not even the database was written
    write(films, {"b.film": [(0, 1, "something else")]})
    (films / "a.film").rename(films / "moved.film")  # its subtitles keep the old name
    archive.fill(index, video=archive.SUBTITLED)
    assert find_videos("captain") == [] and find_videos("something else") == ["b.film"]
    (films / "a.en.srt").rename(films / "moved.en.srt")
    (films / "b.en.srt").write_text("broken")
    report = archive.fill(index, video=archive.SUBTITLED)[1]
    assert find_videos("captain") == ["moved.film"] and find_videos("something else") == []
    assert [line for line in report if "b.en.srt is broken" in line]
    (films / "b.film").unlink()
    with index.writing() as writer:
        writer.forget(["b.film"])
    assert len(transcripts.contents(index)) == 2
    assert len(list((index.directory / "texts").glob("*.vectors"))) == 2


class Words(archive.Encoder):
    """An encoder that adds the vectors of words; synonyms have the same vector."""

    encoded_texts = ()

    def encode_texts(self, texts):
        self.encoded_texts = [*self.encoded_texts, *texts]
        sums = [sum(map(self._word_vector, text.split())) for text in texts]
        return unit(np.stack(sums)).astype(np.float32)

    def _word_vector(self, word):
        synonym = {"boat": "ship", "vessel": "ship", "noon": "midday"}.get(word, word)
        return np.random.default_rng(list(synonym.encode())).normal(size=self.width)


def test_window_of_the_fusion_leaves_out_no_match(index, monkeypatch):
    monkeypatch.setattr(search_module, "WINDOW", 1)
    write(index.root, {name: [(1, 3, "red alert")] for name in ("a.film", "b.film")})
    write(index.root, {"trips/c.film": [(1, 3, "red alert, red")]})
    archive.fill(index, video=archive.SUBTITLED)
    opened = archive.opened(index)
    results = opened.query("alert", signals="transcript")
    pages = [opened.query("alert", signals="transcript", k=1, offset=i) for i in range(4)]
    assert [page[0].video for page in pages[:3]] == [result.video for result in results]
    assert len(results) == 3 and pages[3] == [] and pages[3].reason == "there are only 3"
    videos = [result.video for result in opened.query("red")]
    assert [opened.query("red", k=1, offset=i)[0].video for i in range(3)] == videos


def test_filter_is_not_applied_to_the_best_passages_only(index, monkeypatch):
    monkeypatch.setattr(transcripts, "SECONDS_AFTER_END", 1e6)  # the films are shorter
    write(index.root, {"a.film": [(10 * i, 10 * i + 2, "zebra") for i in range(30)]})
    write(index.root, {"trips/c.film": [(1, 3, "yesterday we saw one unusually large zebra here")]})
    archive.fill(index, video=archive.SUBTITLED)
    opened = archive.opened(index)
    [result] = opened.query("zebra", signals="transcript", folder="trips")
    assert result.video == "trips/c.film"
    results = opened.query("zebra", signals="transcript", moments=40)
    assert [len(result.moments) for result in results] == [30, 1]
    unmatched = opened.query("giraffe", signals="transcript", folder="trips")
    assert unmatched.reason == "no video that passes the filters matches by transcript"


def test_passages_match_by_half_of_the_weight_of_any_words(index, monkeypatch):
    monkeypatch.setattr(passages, "MAX_COMMON_PASSAGES", 5)  # 17 of the words are more common
    monkeypatch.setattr(transcripts, "SECONDS_AFTER_END", 1e6)  # the films are shorter
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(40)]
    share = 1 / np.arange(1, 41)

    def draw_words(count):
        return rng.choice(words, count, p=share / share.sum()).tolist()

    texts = {name: [" ".join(draw_words(4)) for _ in range(60)] for name in ("a.film", "b.film")}
    cues = {name: [(10 * i, 10 * i + 2, t) for i, t in enumerate(texts[name])] for name in texts}
    write(index.root, cues)
    archive.fill(index, video=archive.SUBTITLED)
    opened = archive.opened(index)
    sets = {name: [set(text.split()) for text in texts[name]] for name in texts}
    count = opened.passage_count
    for _ in range(40):
        query = {*draw_words(int(rng.integers(1, 6)))}
        word_sets = [*sets["a.film"], *sets["b.film"]]
        passages_of = {x: sum(x in word_set for word_set in word_sets) for x in query}
        weights = {
            x: np.log(1 + (count - max(p, 1) + 0.5) / (max(p, 1) + 0.5))
            for x, p in passages_of.items()
        }
        min_weight = sum(weights.values()) / 2 - 1e-12
        expected = {
            name: {
                i
                for i, word_set in enumerate(sets[name])
                if sum(weights[x] for x in query & word_set) >= min_weight
            }
            for name in sets
        }
        results = opened.query(" ".join(query), signals="transcript", moments=99)
        passages_found = {
            result.video: {int(moment.start) // 10 for moment in result.moments}
            for result in results
        }
        assert passages_found == {name: x for name, x in expected.items() if x}, query


def test_query_of_common_words_only_is_answered(index, monkeypatch):
    monkeypatch.setattr(passages, "MAX_COMMON_PASSAGES", 1)
    write(index.root, {name: [(1, 3, "a zebra"), (20, 22, "a zebra")] for name in WORDS})
    archive.fill(index, video=archive.SUBTITLED)
    for sentence in ("zebra", "a zebra"):
        results = archive.opened(index).query(sentence, signals="transcript")
        assert {result.video for result in results} == {*WORDS}


BESIDE = archive.SUBTITLED._replace(
    texts=SubtitleReader(frozenset({".srt"}), lambda path: [], archive.beside)
)


@pytest.fixture
def spoken(tmp_path, films, monkeypatch):
    """An index whose three films have 15 cues each, of three words, ten seconds apart."""
    monkeypatch.setattr(passages, "MIN_EMBEDDED_PASSAGES", 20)
    monkeypatch.setattr(transcripts, "SECONDS_AFTER_END", 1e6)  # the films are shorter
    words = iter(np.random.default_rng(0).integers(200, size=(45, 3)))
    cues_of_films = {
        name: [(10 * i, 10 * i + 2, " ".join(f"w{x}" for x in next(words))) for i in range(15)]
        for name in ("a.film", "b.film", "trips/c.film")
    }
    cues_of_films["b.film"][7] = (70, 72, "ship leaves midday")
    write(films, cues_of_films)
    index = archive.create(tmp_path / "index", films)
    archive.fill(index, Words(), video=BESIDE)
    return index


def index_with(encoder, index):
    """Index again; subtitles beside the videos are the only ones."""
    archive.fill(Index.open(index.directory), encoder, video=BESIDE)


def test_paraphrase_is_found_by_its_embedding(spoken):
    library = archive.opened(spoken, encoder=Words())
    [hit] = library.query("boat leaves noon", signals="transcript")
    assert hit.video == "b.film" and hit.passages[0][:3] == (70, 72, "ship leaves midday")
    # "leaves" alone has less than half of the weight; what has all words has both ranks.
    assert hit.passages[0].share == 0 and hit.score == 1 / 61
    assert library.query("ship leaves midday", signals="transcript")[0].score == 2 / 61
    assert (
        "transcript"
        in next(x for x in library.query("boat leaves noon") if x.video == "b.film").signals
    )
    unmatched = library.query("w1000 w1001 w1002", signals="transcript")
    assert unmatched == []
    assert unmatched.reason == unmatched.verdict == "no video matches by transcript"


@pytest.mark.parametrize("min_quantised_rows", [1, 2**16])
def test_near_passages_exceed_the_threshold_of_the_bank(spoken, monkeypatch, min_quantised_rows):
    monkeypatch.setattr(packed, "MIN_QUANTISED_ROWS", min_quantised_rows)
    monkeypatch.setattr(passages, "NULL_QUANTILE", 0.05)
    ids = {entry.content: entry.id for entry in spoken.entries()}
    library, encoder = archive.opened(spoken, encoder=Words()), Words()
    cues = [(content, *cue) for content, id in ids.items() for cue in library.transcript(id)]
    rows = encoder.encode_texts([text for *_, text in cues]).astype(np.float16)

    def cosines(texts):
        return encoder.encode_texts(texts).astype(np.float64) @ rows.T.astype(np.float64)

    bank = cosines(list(rankers.BANK))
    margin = np.quantile(bank.max(1) - np.median(bank, axis=1), 0.05)
    count = 0
    for sentence in ("boat noon", "ship leaves", "w3 w9 w27", "w5 boat"):
        [expected] = cosines([sentence])
        rows_above = np.flatnonzero(expected > np.median(expected) + margin)
        rows_above = rows_above[np.argsort(-expected[rows_above])]
        contents = passages.PassageIndex(spoken, encoder).search_embeddings(
            encoder.encode_texts([sentence])[0]
        )
        ranked = [x for content in contents.scores for x in contents.load(content)]
        ranked.sort(key=lambda passage: -passage.score)
        assert [passage.text for passage in ranked] == [cues[i][3] for i in rows_above]
        scores = [passage.score for passage in ranked]
        np.testing.assert_allclose(scores, expected[rows_above], atol=1e-6)
        order = [cues[i][0] for i in rows_above]
        assert list(contents.scores) == sorted(set(order), key=order.index)
        count += len(ranked)
    assert count > 4


def test_passage_embeddings_are_computed_again_after_changes(spoken, films):
    encoder = Words()
    index_with(encoder, spoken)
    assert encoder.encoded_texts == ()
    write(films, {"b.film": [(0, 1, "ship"), (2, 3, "leaves"), (4, 5, "midday"), (9, 10, "late")]})
    index_with(encoder, spoken)
    # The passages do not overlap.
    assert encoder.encoded_texts == ["ship leaves", "midday late"]
    path = spoken.text_vectors(next(x.content for x in spoken.entries() if x.video == "b.film"))
    content, encoder.encoded_texts = path.read_bytes(), ()
    path.write_bytes(content[:-9] + b"x" + content[-8:])
    assert list(passages.find_damaged(spoken)) == [path.name]
    [result] = archive.opened(spoken, encoder=Words()).query("ship leaves", signals="transcript")
    assert result.video == "b.film"  # by its words
    index_with(encoder, spoken)
    assert encoder.encoded_texts == ["ship leaves", "midday late"] and path.read_bytes() == content
    assert passages.find_damaged(spoken) == {}


def test_damage_of_several_passage_embeddings_is_one_line(spoken):
    paths = sorted((spoken.directory / "texts").iterdir())
    assert len(paths) > 1
    for path in paths:
        path.write_bytes(b"damaged")
    [note] = archive.opened(spoken, encoder=Words()).query("ship").warnings
    assert f"{len(paths)} files, for example {paths[0].parent}" in note
    assert "by words only" in note


def test_vectors_of_changed_texts_are_not_used(spoken, films, monkeypatch):
    def full(path, content):
        if path.suffix == ".vectors":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_bytes(path, content)

    write_bytes = files.write_bytes
    encoder, path = Words(), spoken.text_vectors(spoken.videos["b.film"].content)
    before = archive.opened(spoken, encoder=encoder).passage_count
    write(films, {"b.film": [(10 * i, 10 * i + 2, f"w{i} other w{i + 1}") for i in range(15)]})
    with monkeypatch.context() as patch, pytest.raises(SearchError, match="is full"):
        patch.setattr(files, "write_bytes", full)
        index_with(encoder, spoken)
    assert path.exists() and list(passages.find_damaged(spoken)) == [path.name]
    library = archive.opened(spoken, encoder=Words())
    assert library.passage_count == before  # by their words
    encoder.encoded_texts = ()
    index_with(encoder, spoken)
    assert len(encoder.encoded_texts) == 15 and passages.find_damaged(spoken) == {}
    (films / "b.en.srt").unlink()
    index_with(encoder, spoken)
    assert not path.exists()


def test_complete_embeddings_survive_an_interruption(spoken, monkeypatch):
    def stopped():
        if len(encoder.encoded_texts) == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(passages, "PASSAGES_PER_BATCH", 1)
    for content in spoken.contents():
        spoken.text_vectors(content).unlink()
    encoder = Words()
    with pytest.raises(KeyboardInterrupt), spoken.running():
        passages.embed_passages(spoken, encoder, print, stopped)
    assert len(encoder.encoded_texts) == 20 and passages.find_damaged(spoken) == {}
    with spoken.running():
        passages.embed_passages(spoken, encoder, print)
    assert len(encoder.encoded_texts) == 50  # five texts of the incomplete second file again
    assert len(set(encoder.encoded_texts)) == 45


def test_open_library_uses_embeddings_that_were_computed_later(spoken):
    for content in spoken.contents():
        spoken.text_vectors(content).unlink()
    library = archive.opened(spoken, encoder=Words())
    assert library.query("boat leaves noon", signals="transcript") == []
    with spoken.running():
        passages.embed_passages(spoken, Words(), print)
    assert library.query("boat leaves noon", signals="transcript")[0].video == "b.film"


def ranked(passages_by_content):
    """Return ranked contents whose passages are in memory."""
    scores = {content: first.score for content, (first, *_) in passages_by_content.items()}
    shares = {content: first.share for content, (first, *_) in passages_by_content.items()}
    return passages.RankedContents(scores, shares, passages_by_content.__getitem__)


@pytest.mark.parametrize(("share", "order"), [(1 - 2**-52, "bac"), (0.6, "bca")])
def test_rankings_of_passages_are_fused_by_reciprocal_ranks(share, order):
    words = {
        "a": [passages.Passage(0, 5, "x", 9, share)],
        "b": [passages.Passage(0, 5, "y", 8, 0.5)],
    }
    by_meaning = {
        "c": [passages.Passage(0, 5, "z", 0.9)],
        "b": [passages.Passage(a, a + 5, "n", 0.8) for a in (4, 5, 8)],
    }
    ranking = passages.fuse(ranked(words), ranked(by_meaning))
    assert "".join(ranking.scores) == order  # 2/62, and 1/61 for words and for vectors
    loaded = {content: ranking.load(content) for content in ranking.scores}
    assert [passage.start for passage in loaded["b"]] == [0, 5]  # the others overlap these
    assert {passage.score for passage in loaded["b"]} == {2 / 62} and loaded["c"][0].share == 0


def test_damaged_passage_table_is_rebuilt(index):
    before = archive.opened(index).query("captain", signals="transcript")[0].passages
    for path in (index.directory / "packed").glob("said-*"):
        content = path.read_bytes()
        path.write_bytes(content[:-9] + b"x" + content[-8:])
    assert archive.opened(index).query("captain", signals="transcript")[0].passages == before


def test_query_that_a_transcript_cannot_answer_is_refused(index, films, tmp_path):
    for options in ({"then": "blue"}, {"like": ("b.film", 1)}, {"signals": "heard"}):
        with pytest.raises(QueryError) as refused:
            archive.opened(index).query("red", **{"signals": "transcript", **options})
        assert refused.value.field == "signals" and "visual" in refused.value.allowed
    os.mkdir(tmp_path / "bare")
    archive.film(tmp_path / "bare" / "a.film", ["red"])
    bare = archive.indexed(tmp_path / "other", tmp_path / "bare")
    with pytest.raises(SearchError, match="no subtitles"):
        archive.opened(bare).query("red", signals="transcript")


@pytest.fixture
def copies(tmp_path, films):
    """An index with three copies of one content, two of them with subtitles of their own."""
    for name in ("holiday.new", "holiday", "z"):
        archive.film(films / f"{name}.film", ["red"] * 9 + ["blue"] * 9)
    (films / "holiday.new.srt").write_text('[[1, 3, "purple elephant"], [12, 13, "the end"]]')
    (films / "z.srt").write_text('[[2, 4, "purple elephant"], [12, 13, "the end"]]')
    index = archive.create(tmp_path / "index", films)
    archive.fill(index, video=archive.SUBTITLED)
    return index


def spoken_in(index, sentence, **options):
    hits = archive.opened(index).query(sentence, **options)
    return {
        hit.video: ([passage[:3] for passage in hit.passages], hit.copies)
        for hit in hits
        if hit.passages
    }


def test_subtitle_files_belong_to_one_copy_of_a_content(films, copies):
    transcript_hits = spoken_in(copies, "elephant", signals="transcript")
    assert transcript_hits == {
        "holiday.new.film": ([(1, 3, "purple elephant")], ()),
        "z.film": ([(2, 4, "purple elephant")], ()),
    }
    assert spoken_in(copies, "elephant") == transcript_hits
    # The copy without a transcript is a separate visual result.
    hits = archive.opened(copies).query("elephant", k=9)
    assert {hit.video: hit.copies for hit in hits} == {
        video: () for video in ("holiday.film", *transcript_hits, *WORDS, "trips/c.film")
    }
    for signals in ("transcript", None):
        assert spoken_in(copies, "end", signals=signals) == {
            "holiday.new.film": ([(12, 13, "the end")], ("z.film",))
        }
    library = archive.opened(copies)
    texts = {entry.video: library.transcript(entry.id) for entry in library.videos()}
    assert texts["holiday.film"] == [] and len(texts["z.film"]) == 2
    # Renamed files belong to other videos without being read again.
    (films / "z.srt").rename(films / "holiday.srt")
    (films / "z.film").rename(films / "y.film")
    archive.fill(Index.open(copies.directory), video=archive.SUBTITLED)
    assert {*spoken_in(copies, "elephant", signals="transcript")} == {
        "holiday.film",
        "holiday.new.film",
    }


def test_copies_with_equal_transcripts_are_one_result(films, copies):
    (films / "holiday.srt").write_text('[[1, 3, "purple elephant"], [12, 13, "the end"]]')
    archive.fill(Index.open(copies.directory), video=archive.SUBTITLED)
    transcript_hits = spoken_in(copies, "elephant", signals="transcript")
    assert {video: copies_of_video for video, (_, copies_of_video) in transcript_hits.items()} == {
        "holiday.film": ("holiday.new.film",), "z.film": (),
    }  # fmt: skip


def test_embedded_subtitles_belong_to_all_copies_of_a_content(films, tmp_path):
    for name in ("trips/c", "d/c", "e/c"):
        archive.film(films / f"{name}.film", ["white"] * 7)
    (films / "d" / "c.srt").write_text('[[4, 5, "beside one"]]')
    index = archive.create(tmp_path / "index of copies", films)
    archive.fill(index, video=archive.SUBTITLED)
    assert {*spoken_in(index, "recorded", signals="transcript")} == {"d/c.film", "e/c.film"}
    assert {*spoken_in(index, "beside", signals="transcript")} == {"d/c.film"}


COMPARED = [
    ("我们去市场，今天天气很好", ["市场", "我们去市场", "天气 市场", "去市场吧"], ["商场"]),
    ("犬が通りを走っている", ["走っている", "犬", "通りを走る犬が"], ["猫が寝る"]),
    ("今日はVLOGを撮る", ["vlog", "今日はvlog"], ["明日"]),
    ("auf der großen Straße", ["Straße", "STRASSE", "strasse", "STRAẞE", "große Straße"], []),
    ("ﬁnest ﬀ ＦＵＬＬ x²", ["finest", "ﬁnest", "ff", "full", "ＦＵＬＬ", "x2"], []),
    ("İstanbul'da ışık", ["istanbul", "İSTANBUL", "ISTANBUL", "IŞIK", "ışık", "isik"], []),
    ("café Dvořák", ["cafe", "cafe\u0301", "CAFÉ", "dvorak"], []),
    ("ο Σίσυφος", ["ΣΊΣΥΦΟΣ", "σισυφοσ", "Σισυφος"], []),
    ("мой чёрный кот", ["черный", "мой"], ["мои"]),
    ("यह नाप ठीक है", ["नाप"], ["पानी", "नप"]),
    ("தண்ணீர் வேண்டும்", ["தண்ணீர்"], ["திண்ணை", "தண்ணர்"]),
    ("আমি বাড়ি যাই", ["বাড়ি", "বাড়ি"], ["বাড়া"]),
    ("ฉันกลับบ้าน", ["กลับบ้าน", "กลับ"], ["กลบ", "ดื่มน้ำ"]),
    ("שָׁלוֹם עולם", ["שלום", "שָׁלוֹם"], ["שלם"]),
    ("العَرَبِيَّة أحمد", ["العربية", "العـربية", "احمد"], ["العرب"]),
    ("Fuß\u00adball می\u200cخواهم", ["Fussball", "میخواهم"], []),
    ("がく", ["がく", "か\u3099く"], ["かく"]),
    ("한국어를 배워요", ["한국어를", "\u1112\u1161\u11ab국어를", "한국어가"], ["중국"]),
    ("고양이를 봤어, 서울에서", ["고양이", "고양이가", "서울"], ["양고", "를봤", "울"]),
    ("물은 안녕하세요", ["물", "안녕", "K물"], ["하", "은안"]),
    ("동물 영화", ["동물"], ["물"]),  # the word for animal does not contain the word for water
    ("Łódź Tromsø Ærøskøbing", ["lodz", "ŁÓDŹ", "tromso", "aeroskobing", "TROMSØ"], ["odz"]),
    ("Đà Nẵng, Þór, Ħal, Ŧ, œuvre", ["da nang", "đà", "thor", "hal", "t", "OEUVRE"], []),
    ("lodz oeuvre ðan", ["Łódź", "Œuvre", "dan"], []),
    ("وفي الكِتَابِ", ["كتاب", "الكتاب", "والكتاب", "بالكتاب", "للكتاب", "وبالكتاب"], ["كتب"]),
    ("كتاب على مكتبة", ["الكتاب", "مكتبه", "المكتبة", "علي", "کتاب"], []),
    ("والله يعلم اليد", ["والله", "اليد"], ["له"]),
    ("یک کتاب\u200cها\u200cی خانهٔ", ["كتاب", "کتاب ها", "کتابهای", "خانه", "يك"], ["تاب"]),
    ("PDF\u200cها فیلم\u200cهای2023", ["pdf", "PDFها", "فیلم", "فیلم\u200cهای2023"], []),
    ("لڑکی اور ٱلله", ["لڑکي", "الله"], ["لڑکے"]),
    ("Raum ٣٤ و ۱۹ में ३ ３", ["34", "۳۴", "19", "3"], ["4"]),
    ("चाँद ज़रूरत", ["चांद", "जरूरत"], ["चद"]),
    ("пʼять Hawaiʻi Qurʾān", ["п'ять", "п’ять", "Hawai'i", "Qur'an", "Qur’ān"], []),
    ("𠮷野家𠮷", ["𠮷野", "𠮷", "家𠮷"], ["野𠮷"]),
]
"""Text of a passage, words that find it, and words that do not."""


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The library of a film for each text of `COMPARED`, and the film of each text."""
    folder = tmp_path_factory.mktemp("compared")
    films = {text: f"{i:02}.film" for i, (text, *_) in enumerate(COMPARED)}
    for i, (text, name) in enumerate(films.items()):
        archive.film(folder / "films" / name, ["red"] * (i + 2))
        write(folder / "films", {name: [(1, 3, text)]})
    index = archive.create(folder / "index", folder / "films")
    archive.fill(index, video=archive.SUBTITLED)
    return archive.opened(index), films


@pytest.mark.parametrize(("text", "matching", "unmatched"), COMPARED)
def test_words_match_by_the_rules_of_their_script(compared, text, matching, unmatched):
    library, films = compared

    def results(words):
        return {
            result.video: [passage.text for passage in result.passages]
            for result in library.query(words, k=len(COMPARED), signals="transcript")
        }

    for words in matching:
        assert results(words)[films[text]] == [text], words  # in the original spelling
    for words in unmatched:
        assert films[text] not in results(words), words


def test_time_is_linear_in_the_length_of_a_word():
    start = time.process_time()
    spaced("\u0628" * 20_000)
    assert time.process_time() - start < 1  # a quadratic algorithm took 3 s


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ألوان", "الألوان"), ("لغة", "اللغة"), ("لغة", "باللغة"), ("لغة", "للغة"),
        ("لغة", "وللغة"), ("ليل", "لليل"), ("كتاب", "كالكتاب"), ("الآن", "الان"),
        ("إسلام", "الإسلام"), ("إسلام", "اسلام"), ("سؤال", "السؤال"), ("عربية", "العَرَبِيَّة"),
        ("كتاب", "ٱلكتاب"),
    ],
)  # fmt: skip
def test_arabic_article_does_not_count(first, second):
    assert normalise(first) == normalise(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ألوان", "وان"), ("الآن", "أن"), ("الآن", "إن"), ("والدي", "دي"), ("بالون", "ون"),
        ("ألمانيا", "مانيا"), ("آن", "الان"), ("إلكتروني", "كتروني"), ("لله", "ه"), ("لله", "له"),
        ("اللهم", "لهم"),
    ],
)  # fmt: skip
def test_arabic_letters_of_a_noun_are_not_an_article(first, second):
    assert normalise(first) != normalise(second)
