"""Trained models as rankers."""

import json
import shutil

import archive
import jax
import numpy as np
import pytest
import tiny
from tiny import configuration, write_run

from hlformer_jax import models
from hlformer_jax.config import default
from hlformer_jax.data import split
from hlformer_jax.data.sources import extracted
from hlformer_jax.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.index.records import Threshold
from hlformer_jax.search.signals import trained
from hlformer_jax.search.signals.transcript import passages, transcripts
from hlformer_jax.training import checkpoints
from hlformer_jax.training.loaded_run import LoadedRun

FRAMES = (3, 8, 21, 14, 1)


@pytest.fixture
def index(tmp_path):
    for i, frames in enumerate(FRAMES):
        archive.random_film(tmp_path / "films" / f"{i}.film", frames, seed=i)
    return archive.indexed(tmp_path / "index", tmp_path / "films")


def unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def encoder_of(config):
    """Return a function that encodes the positions of a video by the model alone."""
    built, params = models.build(config), tiny.params(config)
    encode = jax.jit(lambda params, videos: models.encode_video(built, params, videos))

    def encoded(vectors):
        branches = encode(params, trained.videos_of([vectors], config.data, 1))
        return {
            name: unit(np.asarray(branch[0], np.float64))
            for name, branch in branches._asdict().items()
            if branch is not None
        }

    return encoded


def cosines_of(name, encoded, query):
    """Return the cosines of positions and query; each branch of DL-DKD has half of the query."""
    parts = unit(np.stack(np.split(query, 2))) if name == "dl_dkd" else (query, query)
    return {name: rows @ part for (name, rows), part in zip(encoded.items(), parts, strict=False)}


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gmmformer_v2", {}),
        ("gmmformer_v2", {"model.video_level": True}),
        ("gmmformer_v2", {"model.glance": False}),
        ("ms_sl", {}),
        ("dl_dkd", {"loss.distillation": 0.0}),
    ],
    ids=["both branches", "one vector a video", "frames alone", "ms_sl", "dl_dkd"],
)
def test_scores_are_weighted_best_cosines_of_the_model(index, records, tmp_path, name, options):
    config = configuration(name, **options)
    ranker = trained.TrainedRanker(write_run(tmp_path / "run", config), index, records)
    query = ranker.encode(archive.Encoder(), "red blue white")
    assert np.linalg.norm(query) == pytest.approx(1, abs=1e-5)
    scores = ranker.scores(query)
    assert scores.shape == (len(FRAMES),)
    encoded = encoder_of(config)
    clip, frame = (0.7, 0.3) if config.model.glance else (1.0, 1.0)
    for i, record in enumerate(records):
        arrays = index.read(record.content)
        cosines = cosines_of(name, encoded(arrays.vectors), query)
        over_time = ranker.over_time(i, arrays, query)
        assert over_time.shape == arrays.times.shape
        if name == "ms_sl":
            best = int(np.argmax(cosines["clips"]))
            expected = clip * cosines["clips"][best] + frame * cosines["guided"][best]
            weighted = clip * cosines["clips"] + frame * cosines["guided"]
            assert over_time.max() == pytest.approx(weighted.max(), abs=2e-5)
        else:
            expected = frame * cosines["frames"].max()
            if "clips" in cosines:
                expected += clip * cosines["clips"].max()
            assert over_time.max() <= expected + 2e-5
        np.testing.assert_allclose(scores[i], expected, atol=2e-5)
    # With fewer frames than positions, each frame is a position.
    arrays = index.read(records[1].content)
    if name == "dl_dkd" or (name != "ms_sl" and not options):
        cosines = cosines_of(name, encoded(arrays.vectors), query)
        per_clip = 1 if name == "dl_dkd" else 2
        clips, frames = cosines["clips"], cosines["frames"]
        expected = [clip * clips[i // per_clip] + frame * frames[i] for i in range(7)]
        np.testing.assert_allclose(ranker.over_time(1, arrays, query)[:7], expected, atol=2e-5)


def test_videos_are_prepared_as_for_training():
    data = configuration("gmmformer_v2").data
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=(count, data.visual_dim)).astype(np.float16) for count in (3, 21)]
    videos = trained.videos_of(vectors, data, 3)
    for i, rows in enumerate(vectors):
        record = split.VideoRecord("", rows.astype(np.float32), [], [], rows[:0], np.zeros(0, int))
        example = split.transform(record, data.max_clips, data.max_frames, data.max_words)
        np.testing.assert_array_equal(videos.clips[i], example.clips)
        np.testing.assert_array_equal(videos.frames[i][videos.frame_mask[i]], example.frames)
    assert videos.mask.tolist() == [True, True, False]
    assert videos.frame_mask.sum(1).tolist() == [3, data.max_frames, 0]
    assert not videos.clips[2].any() and not videos.frames[~videos.frame_mask].any()


def test_encoder_of_a_run_is_its_first_existing_place(tmp_path):
    run = write_run(tmp_path / "run", configuration("gmmformer_v2"))
    note = run / "features" / extracted.ENCODER
    facts = json.loads(note.read_text())
    folder, missing = tmp_path / "encoder", str(tmp_path / "missing")
    folder.mkdir()
    for places, expected in (
        ([], "colours"),  # the name, which may be a hub id
        ([missing, str(folder), "owner/name"], str(folder)),
        (["owner/name", str(folder)], "owner/name"),
        ([missing], missing),  # an error when it is loaded
    ):
        note.write_text(json.dumps(facts | {"places": places}))
        assert trained.place_of_encoder(run) == expected
    note.unlink()
    assert trained.place_of_encoder(run) is None


@pytest.mark.slow  # it takes seconds
def test_text_that_is_longer_than_the_model_reads_is_named(index, tmp_path):
    config = configuration("gmmformer_v2", **{"model.gaze": False, "data.max_words": 3})
    library = archive.opened(index, checkpoint=write_run(tmp_path / "run", config))
    assert library.query("red green blue").warnings == []
    [line] = library.query("red green blue white").warnings
    assert line.startswith("the trained model reads only the first 3 of the 4 tokens of 'red green")


def test_model_of_the_last_token_reads_it_in_long_texts(index, tmp_path):
    config = configuration("clip4clip_meanp", **{"data.max_words": 3, "model.glance": False})
    library = archive.opened(index, checkpoint=write_run(tmp_path / "run", config))
    short, long = (library.query(text) for text in ("blue", "red green yellow white blue"))
    assert long.warnings == [] and [hit.score for hit in long] == [hit.score for hit in short]


def test_encodings_are_of_the_current_videos_and_parameters(index, tmp_path):
    config = configuration("clip4clip_meanp", **{"model.glance": False})
    run = write_run(tmp_path / "run", config)

    def scores():
        reopened = Index.open(index.directory)
        ranker = trained.TrainedRanker(run, reopened, list(reopened.records().values()))
        values = ranker.scores(ranker.encode(archive.Encoder(), "red"))
        return dict(zip(reopened.records(), values.tolist(), strict=True))

    before = scores()
    params = jax.tree.map(
        lambda x: x + 0.1 * np.cos(np.arange(x.size)).reshape(x.shape).astype(x.dtype),
        tiny.params(config),
    )
    shutil.rmtree(run / "checkpoints")
    checkpoints.save_params(run / "checkpoints" / "best", params, {"epoch": 1})
    retrained = scores()
    assert not set(retrained.values()) & set(before.values())
    shutil.rmtree(index.directory / "packed")
    assert scores() == retrained
    archive.random_film(tmp_path / "films" / "1.film", FRAMES[1], seed=9)
    archive.fill(Index.open(index.directory))
    replaced = scores()
    shutil.rmtree(index.directory / "packed")
    assert scores() == replaced and len(set(replaced) - set(retrained)) == 1


def test_model_has_no_warning_about_the_threshold_of_a_ranker(index, tmp_path):
    with index.writing() as writer:
        writer.set_thresholds({"best_frame": Threshold(0.1, 10.0, 9, frames=1)})
    assert "calibrate it again" in archive.opened(index).query("red").warnings[0]
    config = configuration("clip4clip_meanp", **{"model.glance": False})
    library = archive.opened(index, checkpoint=write_run(tmp_path / "run", config))
    assert library.query("red").warnings == []


@pytest.mark.slow  # it takes seconds
def test_passages_are_ranked_by_the_encoder_for_every_ranker(index, tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "MIN_EMBEDDED_PASSAGES", 1)
    monkeypatch.setattr(transcripts, "SECONDS_AFTER_END", 1e6)  # the films are shorter
    monkeypatch.setattr(passages.PassageIndex, "search_words", lambda *_: passages.NO_CONTENTS)
    cues = [(20 * i, 20 * i + 1, colour) for i, colour in enumerate(("red", "green", "blue"))]
    (tmp_path / "films" / "1.srt").write_text(json.dumps(cues))
    archive.fill(index, video=archive.SUBTITLED)
    run = write_run(tmp_path / "run", configuration("gmmformer_v2"))
    for options in ({}, {"checkpoint": run}):
        [hit] = archive.opened(index, **options).query("green", signals="transcript")
        assert hit.video == "1.film" and [passage.text for passage in hit.passages] == ["green"]


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_videos_are_encoded_once_for_each_set_of_parameters(index, tmp_path, monkeypatch, dtype):
    config = configuration("gmmformer_v2", **{"model.gaze": False, "eval.corpus": dtype})
    run = write_run(tmp_path / "run", config)
    with index.writing() as writer:
        writer.set_checkpoint(run)  # as `index --checkpoint` does
    library = archive.opened(index)
    first = library.query("red", k=5)
    assert len(first) == 5 and library.ranker_name == str(run)
    [path] = (index.directory / "packed").iterdir()
    encode = trained.encode_videos
    monkeypatch.setattr(trained, "encode_videos", None)
    results = archive.opened(index).query("red", k=5)
    assert [(hit.video, hit.score) for hit in results] == [(hit.video, hit.score) for hit in first]
    monkeypatch.setattr(trained, "encode_videos", encode)
    content = path.read_bytes()
    records = list(Index.open(index.directory).records().values())
    for damaged in (b"damaged", content[:-9], archive.flipped(content, len(content) // 2)):
        path.write_bytes(damaged)
        trained.TrainedRanker(run, index, records)
        assert path.read_bytes() == content
    (run / "config.json").write_text((run / "config.json").read_text() + " ")
    trained.TrainedRanker(run, index, records)
    [new_path] = (index.directory / "packed").iterdir()
    assert new_path.name != path.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "name"),
    [(dtype, "gmmformer_v2") for dtype in ("float32", "bfloat16", "int8")] + [("int8", "dl_dkd")],
)
def test_store_adds_the_best_of_both_branches(index, tmp_path, dtype, name, address):
    run = write_run(tmp_path / "run", configuration(name, **{"eval.corpus": dtype}))
    stored = archive.opened(index, checkpoint=run, store=address)
    assert stored.upload().sent == len(FRAMES)
    plain = archive.opened(index, checkpoint=run)
    for sentence in ("red blue white", "green"):
        for k in (2, 9):
            results, expected = stored.query(sentence, k=k), plain.query(sentence, k=k)
            assert [hit.video for hit in results] == [hit.video for hit in expected]
            for stored_hit, hit in zip(results, expected, strict=True):
                assert stored_hit.score == pytest.approx(hit.score, abs=1e-6)
                np.testing.assert_allclose(stored_hit.scores, hit.scores, atol=1e-6)
    second_run = write_run(
        tmp_path / "second", configuration("gmmformer_v2", **{"model.gaze": False})
    )
    library = archive.opened(index, checkpoint=second_run, store=address)
    with pytest.raises(SearchError, match="another ranker"):
        library.query("red")


@pytest.mark.slow
def test_upload_ignores_videos_that_are_indexed_meanwhile(index, tmp_path, address, monkeypatch):
    run = write_run(tmp_path / "run", configuration("gmmformer_v2"))
    stored = archive.opened(index, checkpoint=run, store=address)
    make = stored._ranker

    def make_and_index(*arguments):
        ranker = make(*arguments)
        archive.random_film(tmp_path / "films" / "new.film", 9, seed=9)
        archive.fill(Index.open(index.directory))
        return ranker

    monkeypatch.setattr(stored, "_ranker", make_and_index)
    assert stored.upload().sent == len(FRAMES)
    monkeypatch.undo()
    assert stored.upload()[:2] == (1, len(FRAMES))
    plain = archive.opened(index, checkpoint=run)
    results, expected = (library.query("red blue white", k=9) for library in (stored, plain))
    assert [hit.video for hit in results] == [hit.video for hit in expected]
    scores = [hit.score for hit in expected]
    np.testing.assert_allclose([hit.score for hit in results], scores, atol=1e-6)


@pytest.mark.slow  # it takes seconds
def test_store_refuses_the_score_of_ms_sl(index, tmp_path):
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    run = write_run(tmp_path / "run", configuration("ms_sl"))
    library = archive.opened(index, checkpoint=run, store="postgresql://localhost/films")
    with pytest.raises(SearchError, match="leave out store"):
        library.upload()


def test_run_of_another_encoder_is_refused(index, tmp_path):
    records = list(index.videos.values())
    config = configuration("gmmformer_v2")
    run = write_run(tmp_path / "run", config, fingerprint="0" * 64)
    with pytest.raises(SearchError, match="'colours'"):
        trained.TrainedRanker(run, index, records)
    (run / "features" / extracted.ENCODER).unlink()
    with pytest.raises(SearchError, match="the encoder of its features"):
        trained.TrainedRanker(run, index, records)
    with pytest.raises(SearchError, match="config.json"):
        trained.TrainedRanker(tmp_path / "nowhere", index, records)
    (run / "config.json").write_text("{}")
    with pytest.raises(SearchError, match="damaged"):
        trained.TrainedRanker(run, index, records)


def test_run_of_another_family_is_refused(tmp_path):
    config = json.loads(default("hover").to_json())
    (tmp_path / "config.json").write_text(json.dumps({"config": config}))
    with pytest.raises(SearchError, match="'hover'"):
        trained.read_config(tmp_path)


def test_run_of_other_widths_is_refused(index, tmp_path):
    config = configuration("gmmformer_v2")
    config.data.visual_dim = 7
    run = write_run(tmp_path / "run", config)
    with pytest.raises(SearchError, match="width 7"):
        trained.TrainedRanker(run, index, list(index.videos.values()))
    loaded_run = LoadedRun(run, config, None, None)
    with pytest.raises(SearchError, match="width 12"):
        trained.encode_query(loaded_run, np.zeros((2, 5), np.float32))
