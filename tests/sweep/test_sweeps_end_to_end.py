"""Every sweep of the papers, as a person rehearses it: `:debug` through the command line.

Minutes, nearly all of them compilation. The sweeps share a folder of programs, as they do on a
person's machine.
"""

import json
import math

import processes
import pytest

FILES = sorted(path.stem for path in (processes.ROOT / "configs" / "sweeps").glob("*.py"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("prepared")


@pytest.mark.slow
@pytest.mark.parametrize("stem", FILES)
def test_a_sweep_trains_all_its_variants_and_writes_its_table(stem, data, tmp_path):
    # HOVER's tables are by the number of leaves of a tree: its test videos have every number.
    test = 64 if stem.startswith("hover") else 8
    done = processes.run(
        "sweep",
        f"--config={processes.ROOT}/configs/sweeps/{stem}.py:debug",
        f"--workdir={tmp_path}",
        f"--config.base.data.data_dir={data}",
        f"--config.base.data.synthetic_videos=(16, 8, {test})",
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    table = json.loads((tmp_path / "table.json").read_text())
    assert len(table["variants"]) > 1
    for variant in table["variants"]:
        assert variant["seeds"] == [0], variant["variant"]
        assert not variant["failures"], variant["variant"]
        for name in table["metrics"]:
            assert math.isfinite(variant["mean"][name]), variant["variant"]
    for name in ("table.md", "table.csv", "sweep.png", "sweep.svg"):
        assert (tmp_path / name).stat().st_size > 100
