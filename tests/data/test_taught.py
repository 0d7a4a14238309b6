"""The planted teacher: it sees moments of an otherwise equal corpus, and reaches a batch."""

import dataclasses

import numpy as np
import pytest
from corpora import SMALL, assert_equal, contents

from hlformer_jax.data import dataset, transforms
from hlformer_jax.data.prepared.preparation import prepare
from hlformer_jax.data.source import DataError, TaughtReader, TaughtSource, teacher_width
from hlformer_jax.data.synthetic import Corpus, SyntheticSource
from hlformer_jax.data.taught import TaughtCorpus, TaughtSyntheticSource

TAUGHT = TaughtCorpus(**dataclasses.asdict(SMALL), teacher_dim=16)


def test_the_corpus_is_the_one_without_a_teacher():
    source = TaughtSyntheticSource(TAUGHT)
    assert_equal(contents(source), contents(SyntheticSource(SMALL)))
    assert isinstance(source, TaughtSource) and teacher_width(source) == 16
    assert not isinstance(SyntheticSource(SMALL), TaughtSource)
    assert source.fingerprint() != SyntheticSource(SMALL).fingerprint()


def test_the_teacher_is_surer_of_the_frames_of_the_moment_the_less_noise_it_has():
    margins = []
    for noise in (0.0, 1.0, 10.0):
        corpus = TaughtCorpus(videos=(30, 1, 1), teacher_noise=noise)
        with TaughtSyntheticSource(corpus).open() as reader:
            assert isinstance(reader, TaughtReader)
            found = []
            for video, captions in reader.splits["train"].items():
                names = [caption.caption_id for caption in captions]
                teacher = reader.read_teacher(video, names)
                cosines = transforms.teacher_cosines(*teacher, len(teacher.frames))
                for name, row in zip(names, cosines, strict=True):
                    start, end = reader.moments[name]
                    others = np.concatenate([row[:start], row[end:]])
                    if len(others):
                        found.append(row[start:end].mean() - others.mean())
            margins.append(np.mean(found))
    assert margins[0] > 0.8 and 0.3 < margins[1] < 0.6 and abs(margins[2]) < 0.1, margins


def test_what_the_teacher_says_reaches_the_batch_of_the_training_split_alone(config, read_batches):
    config = config.copy_and_resolve_references()
    config.data.teacher_dim = 16
    taught = dataset.open_data(config)
    source = dataset.choose_source(config.data)
    assert "_6x5x16_" in str(prepare(source, config.data.data_dir).directory)
    assert taught.train.taught and not taught.val.taught and not taught.test.taught
    batches, schedule = read_batches(taught.train, range(0, 1))
    batch = batches[0]
    with source.open() as reader:
        row = 0
        for place, index in enumerate(schedule.order(0)[:4]):
            video = taught.train.video_ids[index]
            names = [caption.caption_id for caption in reader.splits["train"][video]]
            count = int(batch.videos.frame_mask[place].sum())
            expected = transforms.teacher_cosines(*reader.read_teacher(video, names), count)
            found = batch.captions.teacher[row : row + len(names)]
            np.testing.assert_array_equal(found[:, :count], expected)
            assert not found[:, count:].any()
            row += len(names)
    assert batch.captions.mask.sum() == row and not batch.captions.teacher[row:].any()
    assert np.abs(batch.captions.teacher).max() > 0.2
    config.data.teacher_dim = 0
    plain, _ = read_batches(dataset.open_data(config).train, range(0, 1))
    assert plain[0].captions.teacher is None
    np.testing.assert_array_equal(plain[0].videos.frames, batch.videos.frames)


def test_a_data_set_without_a_teacher_is_refused_where_one_is_asked_for(config):
    config = config.copy_and_resolve_references()
    config.data.teacher_dim = 16
    source = SyntheticSource(Corpus(visual_dim=6, text_dim=5))
    with pytest.raises(DataError, match="teacher_dim is 16, and synthetic has no features of a te"):
        dataset.open_data(config, source)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: t._replace(frames=t.frames[:, :3]), "teacher's frames of video 'train_0000"),
        (lambda t: t._replace(captions=t.captions[:1]), "teacher's captions of video 'train_0000"),
        (lambda t: t._replace(frames=0 * t.frames), "teacher's frames .*: all are zero"),
        (lambda t: t._replace(captions=np.nan * t.captions), "holds nan, which no feature can be"),
    ],
)
def test_a_teacher_that_is_wrong_is_refused_in_one_line(tmp_path, monkeypatch, change, expected):
    from hlformer_jax.data import taught

    read = taught.TaughtSyntheticReader.read_teacher
    wrong = lambda self, video, names: change(read(self, video, names))
    monkeypatch.setattr(taught.TaughtSyntheticReader, "read_teacher", wrong)
    with pytest.raises(DataError, match=expected) as error:
        prepare(TaughtSyntheticSource(TAUGHT), tmp_path)
    assert "\n" not in str(error.value)
