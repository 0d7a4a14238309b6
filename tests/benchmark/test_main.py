"""The command line of the benchmark: a wrong one is one clear line."""

import pytest
from command_line import calls

CASES = {
    "no name": ((), "give one name: step"),
    "unknown name": (("speed",), "give one name: step"),
    "peer of another": (("query", "--peer=nowhere"), "--peer goes with step and evaluate"),
    "no checkout": (("step", "--peer=nowhere"), "nowhere"),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    arguments = [given for given, _ in CASES.values()]
    results = calls("hlformer_jax.benchmark", arguments, tmp_path_factory.mktemp("benchmark"))
    return dict(zip(CASES, results, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_command_is_one_clear_line(case, done):
    status, stderr = done[case]
    assert status == 1
    assert "Traceback" not in stderr
    assert CASES[case][1] in stderr.strip().splitlines()[-1]
