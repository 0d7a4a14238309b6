"""Sentences over the prepared videos: against a brute force, and from text features on."""

import json
import types

import h5py
import jax
import numpy as np
import processes
import pytest
import runs

from hlformer_jax import encoders, models
from hlformer_jax.data import dataset
from hlformer_jax.data.sources.protocol import SPLITS
from hlformer_jax.data.sources.released.hdf5 import write_words
from hlformer_jax.data.sources.released.layouts import Collection
from hlformer_jax.retrieval.ranking import ScoreError
from hlformer_jax.search.__main__ import main as search
from hlformer_jax.training import loaded_run, loop
from hlformer_jax.training.loaded_run import EncodedSplit, RunQueryError
from hlformer_jax.typing import Captions, Videos

ROBERTA = processes.ROOT / "tests" / "encoders" / "golden" / "roberta"


@pytest.fixture(scope="module")
def timed(data_dir):
    """The configuration of the shared run, asked for moments."""
    return runs.retrieval(data_dir, **{"eval.moments": "data", "eval.corpus": "float32"})


@pytest.fixture(scope="module")
def archive(retrieval, timed):
    return EncodedSplit(timed, retrieval.path, "test", lambda line: None)


@pytest.mark.slow  # it takes seconds
def test_answer_has_scores_and_moments_of_the_evaluation(archive, retrieval, timed):
    family = types.SimpleNamespace(model=models.build(timed), data=dataset.open_data(timed))
    split = family.data.test
    frames = [split[k].frames for k in range(len(split))]
    result = archive._evaluator.evaluate(archive._params, archive._evaluator.feed(split))
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    encode_video, encode_query = jax.jit(models.encode_video), jax.jit(models.encode_query)
    alone = [  # one by one, without padding
        unit(encode_video(family.model, archive._params, _video(own, split.max_clips)).frames[0])
        for own in frames
    ]
    spans = split.caption_spans()
    for row, name in enumerate(split.caption_ids()):
        words = archive.words(name)
        [found] = archive.ask([words], 3)
        asked = unit(encode_query(family.model, archive._params, _caption(words))[0])
        scores = [(own @ asked).max() for own in alone]
        best = np.argsort(scores)[::-1][:3]
        assert [one.video for one in found] == [split.video_ids[k] for k in best]
        np.testing.assert_allclose([one.score for one in found], np.sort(scores)[:-4:-1], atol=1e-5)
        [every] = archive.ask([words], len(split) + 7)
        assert len(every) == len(split)
        [own] = [one for one in every if one.video == split.video_ids[split.caption_video[row]]]
        span = spans[row]
        shared = max(min(own.end, span.end) - max(own.start, span.start), 0.0)
        union = max(own.end, span.end) - min(own.start, span.start)
        assert own.seconds and shared / union == pytest.approx(
            float(result.per_query["overlaps"][row]), abs=1e-5
        )


def test_sentence_without_finite_scores_is_not_answered(archive, timed):
    words = np.full((3, timed.data.text_dim), np.nan, np.float32)
    with pytest.raises(ScoreError, match="1 of 1 captions have scores that are not finite"):
        archive.ask([words])


def test_answer_lists_the_best_videos_of_each_caption(archive, retrieval, timed):
    split, lines = archive.split, []
    words = [own for k in range(len(split)) for own in split[k].words]
    for name, own in zip(split.caption_ids(), words, strict=True):
        np.testing.assert_array_equal(archive.words(name), own)
    asked = split.caption_ids()[-2:]
    quiet = lambda line: None
    loaded_run.answer(timed, retrieval.path, [], asked, top=3, report=lines.append, warn=quiet)
    expected = []
    for name, videos in zip(asked, archive.ask(words[-2:], 3), strict=True):
        assert sorted(video.score for video in videos)[::-1] == [video.score for video in videos]
        expected += [[f"{name!r}:"], ["rank"]]
        for rank, video in enumerate(videos, 1):
            span = f"{video.start:.1f}–{video.end:.1f}"
            expected.append([f"{rank}", f"{video.score:.4f}", span, "s", video.video])
    for line, start in zip(lines, expected, strict=True):
        assert line.split()[: len(start)] == start
    assert lines[0] == f"{asked[0]!r}: the best of 5 videos of test"


def _video(frames, clips):
    clips, mask = (
        np.zeros((1, clips, frames.shape[1]), frames.dtype),
        np.ones((1, len(frames)), bool),
    )
    return Videos(clips, frames[None], mask, np.ones(1, bool))


def _caption(words):
    mask = np.ones((1, len(words)), bool)
    return Captions(words[None], mask, np.zeros(1, np.int32), np.ones(1, bool))


def test_moments_without_lengths_are_percent(archive, retrieval, data_dir):
    untimed = EncodedSplit(runs.retrieval(data_dir), retrieval.path, "test", lambda line: None)
    words = [archive.words(name) for name in archive.split.caption_ids()[:3]]
    together = archive.ask(words, 2)
    for own, known, alone in zip(untimed.ask(words, 2), together, words, strict=True):
        [single] = archive.ask([alone], 2)
        for one, other, same in zip(own, known, single, strict=True):
            assert one.video == other.video == same.video and not one.seconds
            assert other.score == pytest.approx(same.score, abs=1e-5)
            assert 0 <= one.start < one.end <= 100 + 1e-3
            share = lambda found: found.start / found.end
            assert share(one) == pytest.approx(share(other), abs=1e-5)


def test_impossible_query_is_one_line(archive, retrieval, data_dir, tmp_path):
    synthetic = runs.retrieval(data_dir)
    with pytest.raises(RunQueryError, match="no such caption"):
        archive.words("elsewhere#0")
    with pytest.raises(RunQueryError, match="`query`"):
        loaded_run.answer(synthetic, retrieval.path, [])
    with pytest.raises(RunQueryError, match="synthetic"):
        loaded_run.answer(synthetic, retrieval.path, ["a sentence"])

    told = []
    encoder = types.SimpleNamespace(
        token_width=8, name="mine", fingerprint="f" * 64, encode_tokens=len
    )
    config = runs.retrieval(data_dir)
    config.data.update(manual_dir=str(tmp_path), collection="tvr", feature="i3d")
    with pytest.raises(RunQueryError, match="`encoder` is missing"):
        loaded_run.check_encoder(config, None, told.append)
    loaded_run.check_encoder(config, encoder, told.append)
    assert len(told) == 1 and "not public" in told.pop()
    collection = dataset.choose_source(config.data)
    write_words(collection.text_features, ("mine", "f" * 64), [])
    # Its own features, whatever the collection.
    loaded_run.check_encoder(config, encoder, told.append)
    assert not told
    encoder.fingerprint = "e" * 64
    with pytest.raises(RunQueryError, match="another encoder"):
        loaded_run.check_encoder(config, encoder, told.append)
    encoder.token_width = 9
    with pytest.raises(RunQueryError, match="width 9"):
        loaded_run.check_encoder(config, encoder, told.append)


SENTENCES = [
    "a person opens the fridge", "two dogs are running", "a red circle moves left",
    "they're taking a photo of a house", "a person walks to the window", "a small blue triangle",
]  # fmt: skip


@pytest.fixture
def collection(tmp_path):
    """A collection in the released layout without text features; videos of random frames."""
    rng = np.random.default_rng(0)
    made = Collection(tmp_path / "features", "tiny", "feat", 8, 24)
    made.feature_dir.mkdir(parents=True)
    made.text_features.parent.mkdir(parents=True)
    frames = {f"video{k}": rng.normal(size=(3 + k, 8)) for k in range(len(SENTENCES))}
    lists = {name: [f"{name}_{k}" for k in range(len(x))] for name, x in frames.items()}
    rows = np.concatenate(list(frames.values())).astype("<f4")
    rows.tofile(made.feature_dir / "feature.bin")
    (made.feature_dir / "id.txt").write_text(" ".join(sum(lists.values(), [])))
    (made.feature_dir / "shape.txt").write_text(f"{len(rows)} 8\n")
    (made.feature_dir / "video2frames.txt").write_text(repr(lists))
    text = "".join(f"video{k}#enc#0 {sentence}\n" for k, sentence in enumerate(SENTENCES))
    for split in SPLITS:
        made.captions(split).write_text(text)
    return made


def test_text_features_are_written_in_the_released_layout(collection, tmp_path, capsys):
    arguments = ["features", str(collection.root), "--text-only", f"--encoder={ROBERTA}"]
    assert search(arguments) == 0
    encoder = encoders.load_text(ROBERTA)
    with collection.open() as reader:
        for k, own in enumerate(encoder.encode_tokens(SENTENCES)):
            np.testing.assert_array_equal(reader.read_words(f"video{k}#enc#0"), own)
    assert collection.encoder() == ("roberta", encoder.fingerprint)
    assert "6 captions, features of width 24" in capsys.readouterr().out
    assert search(arguments) == 1 and "--overwrite" in capsys.readouterr().err
    other = tmp_path / "new.txt"
    other.write_text("new#0 a person sings\n")
    assert search([*arguments, f"--captions={other}", f"--out={tmp_path / 'new.hdf5'}"]) == 0
    with h5py.File(tmp_path / "new.hdf5") as file:
        np.testing.assert_array_equal(file["new#0"], encoder.encode_tokens(["a person sings"])[0])
    folder = collection.root / "Trees"  # moments beside the lists, of the same videos
    folder.mkdir()
    moment = {"id": "video0#val_2#0", "start": 0.0, "end": 1.0, "text": " a person\nsings "}
    line = {"video": "video0", "duration": 2.0, "moments": [moment]}
    (folder / "test.moments.jsonl").write_text(json.dumps(line) + "\n")
    assert search([*arguments, "--overwrite"]) == 0
    with h5py.File(collection.text_features) as file:
        assert len(file) == 7
        # In another batch sums are rounded otherwise.
        expected = encoder.encode_tokens(["a person sings"])[0]
        np.testing.assert_allclose(file["video0#val_2#0"], expected, atol=1e-5)
    collection.captions("test").write_text("video0#enc#0 another\n")
    assert search([*arguments, "--overwrite"]) == 1
    assert "another sentence" in capsys.readouterr().err
    assert search(["features", str(tmp_path), "--text-only"]) == 1
    assert "is missing" in capsys.readouterr().err
    assert search(["features", str(collection.root)]) == 1
    assert "--captions is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_command_ranks_a_sentence_like_its_caption(collection, tmp_path):
    assert search(["features", str(collection.root), "--text-only", f"--encoder={ROBERTA}"]) == 0
    config = runs.retrieval(tmp_path / "prepared")
    config.data.update(
        manual_dir=str(collection.manual_dir), collection="tiny", feature="feat",
        text_dim=24, max_frames=9, max_words=30,
    )  # fmt: skip
    config.model.update(hidden_size=16, dropout=0.0, input_dropout=0.0)
    config.train.update(epochs=10, batch_size=6)
    config.optim.learning_rate = 0.003
    loop.train(config, tmp_path / "run")
    runs.write(config, tmp_path / "tiny_config.py")
    scores_file = tmp_path / "scores.npz"
    loaded_run.evaluate_checkpoint(config, tmp_path / "run", scores_file, lambda line: None)
    base = [
        f"--config={tmp_path / 'tiny_config.py'}", "--mode=query", f"--workdir={tmp_path / 'run'}",
        "--split=train", "--top=2",
    ]  # fmt: skip
    asked = [f"--query={sentence}" for sentence in SENTENCES]
    captions = [f"--caption=video{k}#enc#0" for k in range(len(SENTENCES))]
    free, prepared = (
        processes.run("main", *base, *more) for more in ([*asked, f"--encoder={ROBERTA}"], captions)
    )
    assert free.returncode == prepared.returncode == 0, free.stderr + prepared.stderr
    first = lambda done: [
        line.split()[-1] for line in done.stdout.splitlines() if line.startswith("   1  ")
    ]
    with np.load(scores_file) as file:  # the test split's, which has the same captions
        best = [str(file["videos"][row.argmax()]) for row in file["scores"]]
    assert first(free) == first(prepared) == best
