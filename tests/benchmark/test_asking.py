"""Search as the benchmark measures it: what it reports."""

import json

import processes
import pytest


@pytest.mark.slow  # it makes libraries of several sizes
def test_search_is_measured_at_several_sizes(tmp_path):
    arguments = "--hours=19", "--encoder=tiny", "--repeats=1", f"--json={tmp_path}/search.json"
    result = processes.run("benchmark", "search", *arguments)
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / "search.json").read_text())["rows"]
    rows = {row["what"]: row for row in written}
    assert len([name for name in rows if "rows packed" in name]) == 3  # and two videos, twice
    # So many that a library reads rounded rows.
    exact = rows["19 hours: frames, int8, best again"]["facts"]
    assert exact["exact, %"] == rows["19 hours: frames, float16"]["facts"]["exact, %"] > 0
    rounded = rows["19 hours: frames, int8"]["facts"]
    assert 0 < rounded["largest error"] <= rounded["bound"] < 0.05
    # 96 coordinates of a byte, and a scale and a bound of four.
    assert rounded["GB"] == pytest.approx(19 * 3600 * (96 + 8) / 1e9)
    first = rows["first result of a fresh process"]["seconds"]["median"]
    parts = ("start and imports", "opening", "encoder's first sentence", "query")
    assert first == pytest.approx(sum(rows[name]["seconds"]["median"] for name in parts))
    for name, module in (("Qdrant local", "qdrant_client"), ("LanceDB", "lancedb")):
        told = f"{name} is not measured: {module} is not installed" in result.stderr
        assert told != any(row.endswith(f"hours: {name}") for row in rows)
