"""A query: errors that name its fields, and the form in which it is stored."""

from pathlib import Path

import numpy as np
import pytest

from hlformer_jax.errors import QueryError
from hlformer_jax.search.query.query import Query


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("text", {}),
        ("text", {"text": ["red", " "]}),
        ("text", {"text": ["red", "blue"], "then": "green"}),
        ("text", {"without": "red"}),
        ("image", {"image": b"", "like": ("a", 1)}),
        ("k", {"text": "red", "k": 0}),
        ("offset", {"text": "red", "offset": -1}),
        ("within", {"text": "red", "then": "blue", "within": 0}),
        ("within", {"text": "red", "within": 5}),
        ("longer", {"text": "red", "longer": float("nan")}),
        ("min_score", {"text": "red", "min_score": float("nan")}),
        ("since", {"text": "red", "since": "yesterday"}),
        ("signals", {"text": "red", "signals": "smell"}),
        ("signals", {"text": "red", "signals": []}),
        ("longer", {"text": "red", "longer": 90, "shorter": 10}),
        ("since", {"text": "red", "since": "2026-12", "until": "2026-01"}),
        ("text", {"text": 5}),
        ("text", {"text": b"red"}),
        ("then", {"text": "red", "then": [None]}),
        ("tags", {"text": "red", "tags": None}),
        ("signals", {"text": "red", "signals": [1]}),
        ("k", {"text": "red", "k": "5"}),
        ("moments", {"text": "red", "moments": 1.5}),
        ("offset", {"text": "red", "offset": None}),
        ("longer", {"text": "red", "longer": "1:00"}),
        ("min_score", {"text": "red", "min_score": "0.5"}),
        ("folder", {"text": "red", "folder": Path("a{b}")}),
        ("image", {"image": np.zeros((8, 8, 3), np.uint8)}),
        ("like", {"like": "trips/a.mp4@1:05"}),
        ("like", {"like": ("trips/a.mp4", "1:05")}),
    ],
)
def test_error_names_the_field_of_a_query(field, options):
    with pytest.raises(QueryError) as refused:
        Query(**options)
    error = refused.value
    assert error.field == field and field in str(error) and "\n" not in str(error)
    assert f"<{field}>" in error.phrased({field: f"<{field}>"})


def test_filters_of_one_length_or_day_are_allowed():
    Query("red", longer=9, shorter=9, since="2026-01-31", until="2026-01")
    Query("red", since="2026-01", until="2026-01-01")


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_and_iterators_of_texts_are_accepted():
    query = Query(iter(["red"]), k=np.int64(3), longer=np.float32(5), then=(x for x in ["blue"]))
    assert (query.text, query.then, query.k) == (("red",), ("blue",), 3)
    assert Query(like=["trips/a.mp4", np.float64(65)]).has_picture


def test_query_is_stored_in_one_form():
    assert Query("red", then="", without="blue", signals="visual, transcript") == Query(
        ["red"], then=[], without=["blue"], signals=("visual", "transcript")
    )
