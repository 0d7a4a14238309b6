"""The text of a composed action."""

import pytest

from hlformer_jax.data.trees.moment import AnnotatedMoment, TimedVideo
from hlformer_jax.data.trees.rule import build
from hlformer_jax.data.trees.text import texts, without_articles

SENTENCES = ("A man is on the Island.", " Both run.", " He stops at a a wall.")


def told(form, collection, apart=0.0):
    moments = tuple(
        AnnotatedMoment(str(k), k * (10 + apart), k * (10 + apart) + 10, sentence)
        for k, sentence in enumerate(SENTENCES)
    )
    return texts(build(TimedVideo("v", 100.0, moments)), moments, form, collection)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("A man is on the Island.", "man on land."),
        ("He is both a man", "He man"),
        ("at a a wall", "at wall"),
        (" Both are here", "  here"),
        ("In Area 51, Botham", "In a 51, am"),
        ("BoBothth", ""),
        ("a cat, the dog", "a cat, dog"),
    ],
)
def test_articles_are_deleted_wherever_they_stand_until_none_is_left(text, left):
    assert without_articles(text) == left


def test_released_texts_of_activitynet_are_joined_without_a_blank_and_cut():
    assert told("released", "activitynet") == [
        "A man is on the Island.",
        "Both run.",
        "He stops at a a wall.",
        "man on land. run.",
        "run. He stops at wall.",
        # The leaf that two parents share is told twice.
        "man on land. run. run. He stops at wall.",
    ]


def test_released_texts_of_other_collections_are_joined_by_a_blank():
    first, second, third = map(str.strip, SENTENCES)
    assert told("released", "charades")[3:5] == [f"{first} {second}", f"{second} {third}"]


def test_joined_texts_tell_every_moment_once():
    whole = "A man is on the Island. Both run. He stops at a a wall."
    for collection in ("activitynet", "tvr"):
        assert told("joined", collection)[-1] == whole


def test_the_root_of_a_chain_tells_all_its_moments_and_not_only_its_leaf():
    assert told("joined", "", apart=5.0) == [
        "A man is on the Island.",
        "A man is on the Island. Both run. He stops at a a wall.",
    ]
    assert told("released", "activitynet", apart=5.0)[1] == "man on land. run. He stops at wall."


def test_a_form_that_is_unknown_is_refused():
    with pytest.raises(ValueError, match="released or joined"):
        told("spoken", "tvr")
