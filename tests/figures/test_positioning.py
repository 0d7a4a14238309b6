"""The positioning variance is that of the clips that captions match."""

import numpy as np
import pytest

from hlformer_jax.figures import positioning


def test_a_caption_matches_the_clip_of_the_largest_cosine_of_any_length():
    clips = np.eye(4) * np.array([[1.0], [100.0], [0.1], [1.0]])
    asked = np.array([[0, 1, 5, 0], [3, 0, 0, 0], [0, 1, 0, 0.9]])
    assert positioning.matches(asked, clips).tolist() == [2, 0, 1]


def test_variances_are_of_every_video_with_several_captions(subject, options):
    split = subject.split(options)
    found = positioning.variances(subject, options)
    for index in range(len(split)):
        [queries] = subject.encoder.captions(split, [index])
        clips = subject.encoder.videos(split, [index]).clips[0]
        cosines = [[q @ c / np.linalg.norm(q) / np.linalg.norm(c) for c in clips] for q in queries]
        places = [int(np.argmax(row)) for row in cosines]
        if len(places) > 1:
            assert found[index] == pytest.approx(np.mean((places - np.mean(places)) ** 2))
        else:
            assert np.isnan(found[index])


@pytest.mark.slow  # it compiles for seconds
def test_the_figure_has_all_videos_before_and_after_training(subject, options):
    drawn = positioning.draw([subject], options)
    several = int((subject.split(options).captions_per_video > 1).sum())
    assert drawn.table["parameters"] == ["before training"] * several + ["after"] * several
    heights = [sum(bar.get_height() for bar in bars) for bars in drawn.figure.axes[0].containers]
    assert heights == pytest.approx([100, 100])
