"""Queries of a run: answers against exhaustive scoring, and the text features they need."""

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


def _ignore(line):
    """Ignore a line of a report."""


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def timed_config(data_dir):
    """The configuration of the shared run, with moments."""
    return runs.retrieval(data_dir, **{"eval.moments": "data", "eval.corpus": "float32"})


@pytest.fixture(scope="module")
def archive(retrieval, timed_config):
    return EncodedSplit(timed_config, retrieval.path, "test", _ignore)


@pytest.mark.slow  # it takes seconds
def test_answer_has_scores_and_moments_of_the_evaluation(archive, retrieval, timed_config):
    model, data = models.build(timed_config), dataset.open_data(timed_config)
    split = data.test
    frames = [split[k].frames for k in range(len(split))]
    result = archive._evaluator.evaluate(archive._params, archive._evaluator.feed(split))
    encode_video, encode_query = jax.jit(models.encode_video), jax.jit(models.encode_query)
    encoded = [  # one by one, without padding
        _unit(encode_video(model, archive._params, _video(x, split.max_clips)).frames[0])
        for x in frames
    ]
    spans = split.caption_spans()
    for row, name in enumerate(split.caption_ids()):
        words = archive.words(name)
        [answers] = archive.ask([words], 3)
        query = _unit(encode_query(model, archive._params, _caption(words))[0])
        scores = [(positions @ query).max() for positions in encoded]
        best = np.argsort(scores)[::-1][:3]
        assert [answer.video for answer in answers] == [split.video_ids[k] for k in best]
        np.testing.assert_allclose(
            [answer.score for answer in answers], np.sort(scores)[:-4:-1], atol=1e-5
        )
        [answers] = archive.ask([words], len(split) + 7)
        assert len(answers) == len(split)
        relevant = split.video_ids[split.caption_video[row]]
        [answer] = [answer for answer in answers if answer.video == relevant]
        span = spans[row]
        shared = max(min(answer.end, span.end) - max(answer.start, span.start), 0.0)
        union = max(answer.end, span.end) - min(answer.start, span.start)
        assert answer.seconds and shared / union == pytest.approx(
            float(result.per_query["overlaps"][row]), abs=1e-5
        )


def test_sentence_without_finite_scores_is_not_answered(archive, timed_config):
    words = np.full((3, timed_config.data.text_dim), np.nan, np.float32)
    with pytest.raises(ScoreError, match="1 of 1 captions have scores that are not finite"):
        archive.ask([words])


def test_answer_lists_the_best_videos_of_each_caption(archive, retrieval, timed_config):
    split, lines = archive.split, []
    words = [words for k in range(len(split)) for words in split[k].words]
    for name, words_of_caption in zip(split.caption_ids(), words, strict=True):
        np.testing.assert_array_equal(archive.words(name), words_of_caption)
    captions = split.caption_ids()[-2:]
    loaded_run.answer(
        timed_config, retrieval.path, [], captions, top=3, report=lines.append, warn=_ignore
    )
    expected = []
    for name, videos in zip(captions, archive.ask(words[-2:], 3), strict=True):
        assert sorted(video.score for video in videos)[::-1] == [video.score for video in videos]
        expected += [[f"{name!r}:"], ["rank"]]
        for rank, video in enumerate(videos, 1):
            span = f"{video.start:.1f}–{video.end:.1f}"
            expected.append([f"{rank}", f"{video.score:.4f}", span, "s", video.video])
    for line, start in zip(lines, expected, strict=True):
        assert line.split()[: len(start)] == start
    assert lines[0] == f"{captions[0]!r}: the best of 5 videos of test"


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
    untimed = EncodedSplit(runs.retrieval(data_dir), retrieval.path, "test", _ignore)
    words = [archive.words(name) for name in archive.split.caption_ids()[:3]]
    answers_in_percent, answers_in_seconds = untimed.ask(words, 2), archive.ask(words, 2)
    for row, query in enumerate(words):
        [single_answers] = archive.ask([query], 2)
        answers = answers_in_percent[row], answers_in_seconds[row], single_answers
        for percent, seconds, single in zip(*answers, strict=True):
            assert percent.video == seconds.video == single.video and not percent.seconds
            assert seconds.score == pytest.approx(single.score, abs=1e-5)
            assert 0 <= percent.start < percent.end <= 100 + 1e-3
            share = seconds.start / seconds.end
            assert percent.start / percent.end == pytest.approx(share, abs=1e-5)


def test_impossible_query_is_refused(archive, retrieval, data_dir, tmp_path):
    synthetic = runs.retrieval(data_dir)
    with pytest.raises(RunQueryError, match="no such caption"):
        archive.words("elsewhere#0")
    with pytest.raises(RunQueryError, match="`query`"):
        loaded_run.answer(synthetic, retrieval.path, [])
    with pytest.raises(RunQueryError, match="synthetic"):
        loaded_run.answer(synthetic, retrieval.path, ["a sentence"])

    warnings = []
    encoder = types.SimpleNamespace(
        token_width=8, name="mine", fingerprint="f" * 64, encode_tokens=len
    )
    config = runs.retrieval(data_dir)
    config.data.update(manual_dir=str(tmp_path), collection="tvr", feature="i3d")
    with pytest.raises(RunQueryError, match="`encoder` is missing"):
        loaded_run.check_encoder(config, None, warnings.append)
    loaded_run.check_encoder(config, encoder, warnings.append)
    assert len(warnings) == 1 and "not public" in warnings.pop()
    collection = dataset.choose_source(config.data)
    write_words(collection.text_features, ("mine", "f" * 64), [])
    # The collection has features of this encoder.
    loaded_run.check_encoder(config, encoder, warnings.append)
    assert not warnings
    encoder.fingerprint = "e" * 64
    with pytest.raises(RunQueryError, match="another encoder"):
        loaded_run.check_encoder(config, encoder, warnings.append)
    encoder.token_width = 9
    with pytest.raises(RunQueryError, match="width 9"):
        loaded_run.check_encoder(config, encoder, warnings.append)


SENTENCES = [
    "a person opens the fridge", "two dogs are running", "a red circle moves left",
    "they're taking a photo of a house", "a person walks to the window", "a small blue triangle",
]  # fmt: skip


@pytest.fixture
def collection(tmp_path):
    """A collection in the released layout without text features; videos of random frames."""
    rng = np.random.default_rng(0)
    collection = Collection(tmp_path / "features", "tiny", "feat", 8, 24)
    collection.feature_dir.mkdir(parents=True)
    collection.text_features.parent.mkdir(parents=True)
    frames = {f"video{k}": rng.normal(size=(3 + k, 8)) for k in range(len(SENTENCES))}
    lists = {name: [f"{name}_{k}" for k in range(len(x))] for name, x in frames.items()}
    rows = np.concatenate(list(frames.values())).astype("<f4")
    rows.tofile(collection.feature_dir / "feature.bin")
    (collection.feature_dir / "id.txt").write_text(" ".join(sum(lists.values(), [])))
    (collection.feature_dir / "shape.txt").write_text(f"{len(rows)} 8\n")
    (collection.feature_dir / "video2frames.txt").write_text(repr(lists))
    text = "".join(f"video{k}#enc#0 {sentence}\n" for k, sentence in enumerate(SENTENCES))
    for split in SPLITS:
        collection.captions(split).write_text(text)
    return collection


def test_text_features_are_written_in_the_released_layout(collection, tmp_path, capsys):
    arguments = ["features", str(collection.root), "--text-only", f"--encoder={ROBERTA}"]
    assert search(arguments) == 0
    encoder = encoders.load_text(ROBERTA)
    with collection.open() as reader:
        for k, words in enumerate(encoder.encode_tokens(SENTENCES)):
            np.testing.assert_array_equal(reader.read_words(f"video{k}#enc#0"), words)
    assert collection.encoder() == ("roberta", encoder.fingerprint)
    assert "6 captions, features of width 24" in capsys.readouterr().out
    assert search(arguments) == 1 and "--overwrite" in capsys.readouterr().err
    captions = tmp_path / "new.txt"
    captions.write_text("new#0 a person sings\n")
    assert search([*arguments, f"--captions={captions}", f"--out={tmp_path / 'new.hdf5'}"]) == 0
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
        # Sums in another batch are rounded differently.
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
    loaded_run.evaluate_checkpoint(config, tmp_path / "run", scores_file, _ignore)
    base = [
        f"--config={tmp_path / 'tiny_config.py'}", "--mode=query", f"--workdir={tmp_path / 'run'}",
        "--split=train", "--top=2",
    ]  # fmt: skip
    queries = [f"--query={sentence}" for sentence in SENTENCES]
    captions = [f"--caption=video{k}#enc#0" for k in range(len(SENTENCES))]
    best_videos = []
    for flags in ([*queries, f"--encoder={ROBERTA}"], captions):
        process = processes.run("main", *base, *flags)
        assert process.returncode == 0, process.stderr
        lines = [line for line in process.stdout.splitlines() if line.startswith("   1  ")]
        best_videos.append([line.split()[-1] for line in lines])
    with np.load(scores_file) as file:  # the test split's, which has the same captions
        best = [str(file["videos"][row.argmax()]) for row in file["scores"]]
    assert best_videos == [best, best]
