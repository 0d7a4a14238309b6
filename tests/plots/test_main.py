"""The command draws what it is given, the same files each time."""

import json
from xml.etree import ElementTree

import plotted

from hlformer_jax import plots
from hlformer_jax.plots import __main__ as command

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_command_draws_a_sweep_and_its_runs_the_same_each_time(tmp_path):
    row = plotted.row("a", [1.0, 2.0], 1)
    row["runs"][0]["directory"], row["runs"][1]["directory"] = "a/seed0", "a/seed1"
    (tmp_path / "a" / "seed0").mkdir(parents=True)
    log = "".join(json.dumps(record) + "\n" for record in plotted.records(2))
    (tmp_path / "a" / "seed0" / "metrics.jsonl").write_text(log)
    (tmp_path / "table.json").write_text(json.dumps(plotted.table(row, quantity="width")))
    names = [f"{stem}.{kind}" for stem in ("sweep", "a/seed0/curves") for kind in ("png", "svg")]
    first = None
    for _ in range(2):
        assert command.main(["plots", str(tmp_path)]) == 0
        content = {name: (tmp_path / name).read_bytes() for name in names}
        first = first or content
        assert content == first
    for name, file in first.items():
        if name.endswith("png"):
            assert file.startswith(PNG) and file.rstrip().endswith(b"IEND\xaeB`\x82")
        else:
            assert ElementTree.fromstring(file).tag == "{http://www.w3.org/2000/svg}svg"
    run = tmp_path / "a" / "seed0"
    (run / "curves.png").unlink()
    assert command.main(["plots", str(run)]) == 0
    assert (run / "curves.png").exists()


def test_a_wrong_directory_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "table.json").write_text("{")
    for argv in ([], [str(tmp_path / "nowhere")], [str(tmp_path)]):
        assert command.main(["plots", *argv]) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")


def test_a_line_of_a_record_that_is_none_is_named_and_one_cut_short_left_out(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    log = "".join(json.dumps(record) + "\n" for record in plotted.records(2))
    path.write_text(log + '{"step": 12')
    assert plots.draw_run(tmp_path)
    drawn = (tmp_path / "curves.svg").read_bytes()
    path.write_text(log)
    assert plots.draw_run(tmp_path) and (tmp_path / "curves.svg").read_bytes() == drawn
    path.write_text("{}\nnone\n")
    assert command.main(["plots", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}, line 2 is no JSON")
