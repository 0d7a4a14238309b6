"""The stories of the demo's videos."""

import itertools

import pytest

from hlformer_jax.search.demo import scenes


def test_scenes_fill_each_video_without_gaps():
    for story in scenes.stories(0, 40):
        assert story.scenes[0].start == 0
        assert all(a.end == b.start for a, b in itertools.pairwise(story.scenes))
        assert 20 <= story.duration <= 40
        assert all(3 <= scene.end - scene.start <= 9 for scene in story.scenes)


def test_equal_seeds_tell_equal_stories_and_others_do_not():
    assert scenes.stories(3, 5) == scenes.stories(3, 5)
    assert scenes.stories(3, 5) != scenes.stories(4, 5)


def test_no_sentence_is_true_of_two_scenes():
    told = [scene for story in scenes.stories(0, 40) for scene in story.scenes]
    events = [(scene.action, frozenset(scene.things)) for scene in told if scene.sentence]
    assert len(set(events)) == len(events) > 100


def test_a_search_has_to_tell_every_attribute():
    """Each colour, shape and action is in many videos, and two attributes still in several."""
    told = scenes.stories(0, 24)
    holds = lambda word: sum(
        any(word in (scene.sentence or "") for scene in story.scenes) for story in told
    )
    for word in [*scenes.COLOURS, *scenes.SHAPES, "left", "grows", "meets"]:
        assert holds(word) > 5, word
    pairs = [f"{colour} {shape}" for colour in scenes.COLOURS for shape in scenes.SHAPES]
    assert sum(holds(pair) for pair in pairs) / len(pairs) > 2


def test_some_scenes_have_no_sentence():
    told = [scene for story in scenes.stories(0, 24) for scene in story.scenes]
    silent = [scene for scene in told if scene.sentence is None]
    assert 0.1 < len(silent) / len(told) < 0.4
    assert not any(scene.things for scene in silent)


def test_sentences_say_who_does_what():
    red, blue = scenes.Thing("red", "circle"), scenes.Thing("blue", "star")
    assert scenes.sentences("left", (red,))[0] == "a red circle moves to the left"
    assert scenes.sentences("meets", (red, blue))[0] == "a red circle meets a blue star"
    assert scenes.Scene(0, 3, "shrinks", (blue,)).sentence == "a blue star shrinks"


def test_training_has_all_words_of_the_captions():
    words = lambda sentences: {word for sentence in sentences for word in sentence.split()}
    told = [scene.sentence for story in scenes.stories(0, 40) for scene in story.scenes]
    assert words(filter(None, told)) <= words(said for _, said in scenes.moments(5, 500))


@pytest.mark.parametrize("count", [0, 41])
def test_a_number_of_videos_that_cannot_be_told_apart_is_refused(count):
    with pytest.raises(ValueError, match="1 to 40 videos"):
        scenes.stories(0, count)
