"""What the demo draws: the right colours, at the right places, at the right times."""

import numpy as np
import pytest

from hlformer_jax import video
from hlformer_jax.search.demo import render, scenes

GREY = np.full((render.HEIGHT, render.WIDTH, 3), 60, np.uint8)


def seen(action, time, colour="red", shape="circle"):
    """Where the full colour is: rows and columns."""
    scene = scenes.Scene(2, 6, action, (scenes.Thing(colour, shape),))
    picture = render.draw(scene, time, GREY).astype(int)
    return np.nonzero((abs(picture - scenes.COLOURS[colour]) < 8).all(-1))


@pytest.mark.parametrize(
    ("action", "axis", "sign"), [("left", 1, -1), ("right", 1, 1), ("up", 0, -1), ("down", 0, 1)]
)
def test_a_shape_moves_where_the_sentence_says(action, axis, sign):
    centres = [np.mean(seen(action, time)[axis]) for time in (2, 3, 4, 5, 5.9)]
    assert (sign * np.diff(centres) > 5).all()


@pytest.mark.parametrize(("action", "sign"), [("grows", 1), ("shrinks", -1)])
def test_a_shape_changes_its_size_as_the_sentence_says(action, sign):
    widths = [np.ptp(seen(action, time)[1]) for time in (2, 3, 4, 5, 5.9)]
    assert (sign * np.diff(widths) > 0).all()


@pytest.mark.parametrize(
    ("action", "axis", "behind"), [("left", 1, 1), ("right", 1, -1), ("up", 0, 1), ("down", 0, -1)]
)
def test_a_single_frame_shows_the_trail_behind_the_shape(action, axis, behind):
    scene = scenes.Scene(2, 6, action, (scenes.Thing("red", "square"),))
    picture = render.draw(scene, 4, GREY).astype(int)
    changed = np.nonzero((picture != GREY).any(-1))[axis]
    middle = np.mean(seen(action, 4, shape="square")[axis])
    reach = np.max(changed * behind) - middle * behind
    assert reach > 1.5 * (np.max(-changed * behind) + middle * behind)


def test_shapes_that_meet_touch_in_the_end_and_not_before():
    things = (scenes.Thing("red", "square"), scenes.Thing("blue", "square"))
    scene = scenes.Scene(0, 6, "meets", things)
    gaps = []
    for time in (0, 2, 5):
        picture = render.draw(scene, time, GREY).astype(int)
        red, blue = (
            np.nonzero((abs(picture - scenes.COLOURS[c]) < 8).all(-1))[1] for c in ("red", "blue")
        )
        gaps.append(blue.min() - red.max())
    assert gaps[0] > gaps[1] > gaps[2] and abs(gaps[2]) < 8


def test_shapes_look_different():
    masks = []
    for shape in scenes.SHAPES:
        mask = np.zeros(GREY.shape[:2], bool)
        mask[seen("grows", 3.9, shape=shape)] = True
        masks.append(mask)
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert (one & other).sum() / (one | other).sum() < 0.85


def test_nothing_is_drawn_where_nothing_happens():
    np.testing.assert_array_equal(render.draw(scenes.Scene(0, 3), 1, GREY), GREY)


def test_backgrounds_are_dull_and_of_their_seed():
    one, other = render.Background(1), render.Background(2)
    assert (one.at(3.0) == render.Background(1).at(3.0)).all()
    assert (one.at(3.0) != other.at(3.0)).mean() > 0.5
    assert one.at(3.0).max() < 130


def test_a_written_video_shows_each_scene_at_its_time(tmp_path):
    red, blue = scenes.Thing("red", "circle"), scenes.Thing("blue", "square")
    told = (
        scenes.Scene(0, 3, "grows", (red,)),
        scenes.Scene(3, 6),
        scenes.Scene(6, 9, "left", (blue,)),
    )
    path = tmp_path / "below" / "a.mp4"
    render.write(scenes.Story("a.mp4", told, 5), path)
    info = video.probe(path)
    assert info[:5] == (9, 192, 144, 12, "h264")
    near = lambda image, colour: (
        (abs(image.astype(int) - scenes.COLOURS[colour]) < 60).all(-1).sum()
    )
    for frame in video.sample(path, 2):
        assert (near(frame.image, "red") > 300) == (frame.time < 3)
        assert (near(frame.image, "blue") > 300) == (frame.time >= 6)
    assert [file.name for file in path.parent.iterdir()] == ["a.mp4"]


def test_frames_for_training_are_of_their_seed_and_of_their_sentences():
    images, said = render.frames_for_training(7, 60, 32)
    assert images.shape == (60, 32, 32, 3) and images.dtype == np.uint8 and len(said) == 60
    again, same = render.frames_for_training(7, 60, 32)
    assert (images == again).all() and said == same
    assert said != render.frames_for_training(8, 60, 32)[1]
    for image, sentence in zip(images, said, strict=True):
        for colour in (word for word in sentence.split() if word in scenes.COLOURS):
            assert (abs(image.astype(int) - scenes.COLOURS[colour]) < 40).all(-1).sum() >= 8
