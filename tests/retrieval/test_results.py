"""Metrics of a split as a file and as a table."""

from hlformer_jax.retrieval.results import Result, print_table


def test_a_result_is_written_with_what_it_is_of():
    assert Result({"R@1": 12.5}, 40, 10).as_json() == {"R@1": 12.5, "queries": 40, "videos": 10}


def test_a_table_has_a_row_a_name_and_leaves_empty_what_a_row_lacks(capsys):
    print_table("Test", {"model": {"R@1": 12.345, "SumR": 100.0}, "baseline": {"SumR": 7.0}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["Test"] in lines and ["R@1", "SumR"] in lines
    assert ["model", "12.35", "100.00"] in lines or ["model", "12.34", "100.00"] in lines
    assert ["baseline", "7.00"] in lines
