"""The command, its figures and their files, and the page with all figures."""

import base64
import dataclasses
import importlib
import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import processes
import pytest

from hlformer_jax import files
from hlformer_jax.errors import UserError
from hlformer_jax.figures import drawing, report
from hlformer_jax.figures.drawing import Columns


# The command also draws curves below, and this figure is drawn in this process.
@pytest.mark.slow
def test_figure_is_drawn_into_the_directory_of_the_run(directory):
    done = processes.run("figures", "windows", f"--workdir={directory}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(directory / "figures" / "windows.png")
    names = {path.name for path in (directory / "figures").iterdir()}
    assert names == {"windows.png", "windows.svg", "windows.csv", files.WRITTEN}


WRONG = {
    "no name": ([], "give the name of one figure: frames, hyperbolic"),
    "misspelt": (["window", "--workdir=x"], "did you mean 'windows'"),
    "no run": (["windows"], "--workdir is missing"),
    "no curves": (["curves"], "--workdir is missing"),
    "split of curves": (
        ["curves", "--workdir=nowhere", "--split=val"],
        "--split goes with figures of a trained model, not with curves",
    ),
    "nowhere": (["curves", "--workdir=nowhere"], "nowhere"),
    "no config": (["windows", "--workdir=nowhere"], "nowhere has no config.json"),
    "no space": (["ball", "--workdir={run}"], "HLFormer embeds videos and captions"),
    "no video": (["heatmap", "--workdir={run}", "--video=x"], "--video=x: the split test has no"),
    "there already": (["windows", "--workdir=nowhere", "--out=."], "windows.svg exists"),
    "of a page": (["report", "--workdir=nowhere", "--out=."], "windows.svg exists"),
}


@pytest.fixture(scope="module")
def results(directory, tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    (folder / "windows.svg").write_bytes(b"theirs")
    lines = [[word.format(run=directory) for word in words] for words, _ in WRONG.values()]
    endings = processes.calls("hlformer_jax.figures", lines, folder)
    assert [path.name for path in folder.iterdir()] == ["windows.svg"]
    return dict(zip(WRONG, endings, strict=True))


@pytest.mark.slow  # a process each
@pytest.mark.parametrize("case", WRONG)
def test_wrong_command_prints_one_line(case, results):
    processes.check_error(results[case], WRONG[case][1])


def test_columns_have_nine_digits_and_empty_cells():
    table = Columns("run", "k", "value")
    table.add("a,b", np.arange(2), np.array([1 / 3, np.nan]))
    table.add("c", None, 2.0)
    assert drawing.as_csv(table.columns) == 'run,k,value\n"a,b",0,0.333333333\n"a,b",1,\nc,,2\n'
    with pytest.raises(ValueError):
        table.add("c", np.arange(2), np.arange(3))


def test_equal_drawings_are_equal_files(tmp_path):
    for name in ("one.a", "one.b"):
        with drawing.styled():
            figure = drawing.Figure(figsize=(2, 1))
            figure.add_subplot().plot([0, 1], [1, 0], label="a")
        drawing.write(figure, tmp_path / name, {"x": [0, 1]})
    for kind in ("png", "svg", "csv"):
        first, second = (tmp_path / f"one.{name}.{kind}" for name in "ab")
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow  # it takes seconds
def test_curves_load_neither_a_screen_nor_jax():
    code = (
        "import sys, hlformer_jax.figures.curves;"
        " sys.exit(bool({'matplotlib.pyplot', 'jax'} & set(sys.modules)))"
    )
    assert processes.finish([sys.executable, "-c", code]).returncode == 0


def test_pictures_replace_only_own_files(tmp_path):
    figure = drawing.Figure()
    for _ in range(2):
        drawing.write(figure, tmp_path / "a", {"x": [1]})
    for kind in drawing.KINDS:
        before = (tmp_path / f"a.{kind}").read_bytes()
        (tmp_path / f"a.{kind}").write_bytes(b"theirs")
        with pytest.raises(files.OutputError):
            drawing.write(figure, tmp_path / "a", {"x": [1]})
        assert (tmp_path / f"a.{kind}").read_bytes() == b"theirs"
        (tmp_path / f"a.{kind}").write_bytes(before)
    with pytest.raises(files.OutputError):
        drawing.write(figure, tmp_path / "a", {"x": [1]}, files.replacing(False))
    drawing.write(figure, tmp_path / "a", {"x": [1]}, files.replacing(True))


@pytest.mark.slow  # it takes seconds
def test_curves_of_a_run_are_drawn_into_its_directory(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "epoch": 0, "loss": 1.0}\n')
    done = processes.run("figures", "curves", f"--workdir={tmp_path}")
    assert done.stdout.strip() == str(tmp_path / "curves.png"), done.stderr
    assert {path.name for path in tmp_path.iterdir()} > {"curves.png", "curves.svg"}


def test_every_figure_has_a_function_that_draws_it():
    for name, listing in report.FIGURES.items():
        module = importlib.import_module(f"hlformer_jax.figures.{listing.module}")
        assert callable(getattr(module, name)) and listing.title and listing.source


def test_figures_are_drawn_in_the_style(subject, options):
    drawn = report.draw("windows", [subject], options)
    assert not drawn.figure.axes[0].spines["top"].get_visible()
    assert drawn.figure.axes[0].xaxis.label.get_fontsize() == drawing.STYLE["font.size"]


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.texts.append(data.strip())


@pytest.mark.slow  # it takes seconds
def test_page_is_self_contained(gmmformer, options, tmp_path, monkeypatch):
    listings = {name: report.FIGURES[name] for name in ("windows", "weights", "ball")}
    monkeypatch.setattr(report, "FIGURES", listings)
    lines = []
    path = report.write([gmmformer], options, tmp_path / "out", lines.append)
    content = path.read_text()
    page = _Page(content)
    # The page fetches nothing: it contains the pictures and links to the files beside it.
    assert not re.search(r"https?:|<script|<link|@import|url\(", content)
    [picture] = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    image = base64.b64decode(picture.removeprefix("data:image/png;base64,"))
    assert image == (path.parent / "windows.png").read_bytes()
    links = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    assert links == {"windows.svg", "windows.csv"}
    assert all((path.parent / link).exists() for link in links)
    assert (
        "meta",
        {"name": "viewport", "content": "width=device-width, initial-scale=1"},
    ) in page.tags
    reasons = [text for text in page.texts if "ball" in text or "(weights)" in text]
    assert "GMMFormer embeds videos and captions" in reasons[1]
    assert "fusion 'mean'" in reasons[0]
    assert len(lines) == 3 and lines[1].startswith("weights: not drawn: GMMFormer has the fusion")


def test_texts_of_a_run_are_escaped(subject, options, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "FIGURES", {"windows": report.Listing("attention", "<b>", "a & b")})
    text = report.write([subject], options, tmp_path, lambda line: None).read_text()
    assert "&lt;b&gt;" in text and "a &amp; b" in text and "<b>" not in text


def test_table_has_the_metrics_of_each_run(subject, gmmformer):
    page = _Page(report.metrics_table([subject, gmmformer]))
    assert [text for text in page.texts if text] == [
        "test split", "R@1", "SumR", "queries", "videos",
        "HLFormer", "12.50", "100.00", "15", "5", "GMMFormer",
    ]  # fmt: skip
    assert "No test metrics" in report.metrics_table([gmmformer])


def test_table_names_the_epoch_of_an_unfinished_run(subject, tmp_path):
    metrics = {"SumR": 100.0, "unfinished": "epoch 3 of 100"}
    (tmp_path / "test_metrics.json").write_text(json.dumps(metrics))
    run = subject.run._replace(directory=tmp_path)
    page = _Page(report.metrics_table([dataclasses.replace(subject, run=run)]))
    label = "HLFormer (unfinished: epoch 3 of 100)"
    assert [text for text in page.texts if text] == ["test split", "SumR", label, "100.00"]


@pytest.mark.parametrize("content", [b"", b"\xff", b'{"SumR": 1', b"1"])
def test_damaged_metrics_are_refused(content, subject, tmp_path):
    (tmp_path / "test_metrics.json").write_bytes(content)
    run = subject.run._replace(directory=tmp_path)
    with pytest.raises(UserError, match=r"test_metrics\.json is damaged"):
        report.metrics_table([dataclasses.replace(subject, run=run)])


def test_every_picture_names_its_data_and_seed(subject, options, trees):
    for drawn_subject, name in ((subject, "windows"), (trees, "leaves")):
        text = report.draw(name, [drawn_subject], options).figure.get_suptitle()
        assert text.startswith("Data: synthetic ") and "(made by this program)" in text
        assert "seed 0; test split shown" in text
