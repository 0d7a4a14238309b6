"""What figures encode is what evaluation encodes."""

import contextlib

import jax
import numpy as np

from hlformer_jax.data.transforms import unit


def test_videos_and_captions_are_those_of_the_evaluation(subject, options):
    run, split = subject.run, subject.split(options)
    with contextlib.closing(run.family.evaluator.feed(split)) as feed:
        stored, queries = run.family.evaluator.encode(run.params, feed, "float32")
    encoded = subject.encoder.videos(split, np.arange(len(split)))
    for name in ("clips", "frames"):
        want = np.asarray(stored.stored[name].values)
        want = want.reshape(-1, *want.shape[2:])[: len(split)]
        np.testing.assert_allclose(unit(getattr(encoded, name)), want, atol=2e-6)
    captions = subject.encoder.captions(split, np.arange(len(split)))
    assert [len(own) for own in captions] == split.captions_per_video.tolist()
    np.testing.assert_allclose(unit(np.concatenate(captions)), queries, atol=2e-6)


def test_a_video_is_encoded_alone_as_among_others_and_by_other_parameters(subject, options):
    split = subject.split(options)
    every = subject.encoder.videos(split, [0, 1, 2, 3])
    one = subject.encoder.videos(split, [3])
    np.testing.assert_allclose(one.clips[0], every.clips[3], atol=1e-5)
    assert one.num_frames[0] == split.frames_per_video[3]
    pinned = jax.tree.map(lambda x: x, subject.run.params)
    pinned["frame_branch"]["position"] = jax.tree.map(
        np.zeros_like, pinned["frame_branch"]["position"]
    )
    other = subject.encoder.videos(split, [3], pinned)
    np.testing.assert_array_equal(other.clips, one.clips)
    assert np.abs(other.frames - one.frames).max() > 1e-3
