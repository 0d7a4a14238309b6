"""The precision of images is chosen, recorded in the index, printed, and never mixed silently."""

import importlib
import json

import archive
import page_library
import pytest

from hlformer_jax import encoders
from hlformer_jax.encoders import cpu, train
from hlformer_jax.errors import QueryError
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest.extract import index_folder
from hlformer_jax.search.ingest.precision import resolve_precision, set_precision
from hlformer_jax.search.query.library import Library

SIZE = train.Size(width=16, heads=2, patch=4, tokens=4)


@pytest.fixture
def encoder():
    return train.untrained(8, ["red green", "blue"], size=SIZE)


@pytest.fixture(autouse=True)
def films(tmp_path):
    (tmp_path / "videos").mkdir()
    write_film(tmp_path, "first", 1)
    return tmp_path / "videos"


def write_film(folder, name, seed):
    archive.random_film(folder / "videos" / f"{name}.film", 3, seed)


@pytest.fixture
def index(tmp_path, encoder):
    return Index.create(tmp_path / "index", tmp_path / "videos", encoder)


def run(index, encoder, **options):
    lines = []
    report = index_folder(
        index, encoder, video=archive.VIDEO, workers=0, report=lines.append, **options
    )
    assert report.failed == 0
    return lines


def test_new_index_takes_the_precision_of_the_processor(index, encoder, monkeypatch):
    for has_bfloat16, precision in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(cpu, "has_bfloat16", lambda has=has_bfloat16: has)
        assert resolve_precision(index, encoder) == precision
    assert run(index, encoder) == []
    assert encoder.image_precision == "float32"
    assert index.summary()["precisions"] == ["float32"]
    monkeypatch.setattr(cpu, "has_bfloat16", lambda: True)
    assert resolve_precision(index, encoder) == "float32"


def test_index_is_continued_in_its_precision(tmp_path, index, encoder):
    run(index, encoder, precision="bfloat16")
    write_film(tmp_path, "second", 2)
    assert run(Index.open(index.directory), encoder) == []
    assert encoder.image_precision == "bfloat16"
    assert Index.open(index.directory).precisions == ("bfloat16",)


def test_index_without_a_recorded_precision_is_of_float32(tmp_path, index, encoder, capsys):
    run(index, encoder, precision="float32")
    with index.writing() as writer:  # as before precisions were recorded
        writer.execute("DELETE FROM settings WHERE name = 'precisions'")
    before = Index.open(index.directory)
    assert before.precisions == () and resolve_precision(before, encoder) == "float32"
    assert len(Library(index.directory, encoder=encoder).query("red")) == 1
    write_film(tmp_path, "second", 2)
    [line] = run(before, encoder, precision="bfloat16")
    assert "encoded in float32" in line and "encoded in bfloat16" in line
    assert before.precisions == ("float32", "bfloat16")
    assert len(Library(index.directory, encoder=encoder).query("red")) == 2
    assert main(["status", f"--index={index.directory}"]) == 0
    assert "1 frames per second, float32 and bfloat16\n" in capsys.readouterr().out


def test_precision_and_compiler_are_described(encoder, monkeypatch):
    assert set_precision(encoder, "float32") == "new images are encoded in float32 by OpenVINO"
    assert set_precision(encoder, "int8") == "new images are encoded in int8 by OpenVINO"
    for has_bfloat16, backend in ((True, "OpenVINO"), (False, "XLA")):
        monkeypatch.setattr(cpu, "has_bfloat16", lambda has=has_bfloat16: has)
        line = set_precision(encoder, "bfloat16")
        assert line == f"new images are encoded in bfloat16 by {backend}"
    monkeypatch.setattr(cpu, "is_installed", lambda: False)
    line = set_precision(encoder, "float32")
    assert "float32 by XLA (OpenVINO is faster: " in line and "[cpu]" in line


def test_recorded_precision_that_cannot_be_computed_names_the_way_out(
    tmp_path, index, encoder, monkeypatch
):
    run(index, encoder, precision="int8")
    monkeypatch.setattr(cpu, "_openvino", lambda: importlib.import_module("missing_openvino"))
    with pytest.raises(QueryError) as refused:
        run(index, encoder)
    assert refused.value.field == "precision"
    assert "were encoded in int8: continue it in another by" in str(refused.value)
    write_film(tmp_path, "second", 2)
    run(index, encoder, precision="bfloat16")
    assert index.precisions == ("int8", "bfloat16")


def test_refused_precision_makes_no_index(tmp_path, encoder, monkeypatch, capsys):
    encoders.save(encoder, tmp_path / "encoder")
    page_library.render(tmp_path / "rendered" / "a.mp4", ["red"])
    monkeypatch.setattr(cpu, "_openvino", lambda: importlib.import_module("missing_openvino"))
    place = f"--index={tmp_path / 'new'}"
    options = (place, f"--encoder={tmp_path / 'encoder'}", "--precision=int8")
    assert main(["index", str(tmp_path / "rendered"), *options]) == 1
    assert "int8 needs OpenVINO" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_features_of_another_precision_than_the_index_are_refused(
    index, encoder, tmp_path, capsys, monkeypatch
):
    encoders.save(encoder, tmp_path / "encoder")
    names = ["first", "second", "third"]
    for seed, name in enumerate(names):
        write_film(tmp_path, name, seed)
    run(index, encoder, precision="float32")
    captions, out = tmp_path / "captions.jsonl", tmp_path / "out"
    lines = [json.dumps({"video": f"{name}.film", "sentence": "red"}) for name in names]
    captions.write_text("\n".join(lines))
    monkeypatch.setattr("hlformer_jax.search.ingest.extract.real_video", lambda: archive.VIDEO)
    options = [
        f"--captions={captions}", f"--out={out}", f"--index={index.directory}",
        f"--encoder={tmp_path / 'encoder'}", "--workers=0",
    ]  # fmt: skip
    folder = str(tmp_path / "videos")
    assert main(["features", folder, *options, "--precision=bfloat16"]) == 1
    line = capsys.readouterr().err
    assert f"--precision=bfloat16: {index.directory} has embeddings in float32" in line
    assert not out.exists()
    assert main(["features", folder, *options, "--precision=float32"]) == 0


def test_encoder_without_a_choice_refuses_one(tmp_path):
    encoder = archive.Encoder()
    index = Index.create(tmp_path / "index", tmp_path / "videos", encoder)
    with pytest.raises(QueryError) as refused:
        run(index, encoder, precision="bfloat16")
    assert refused.value.field == "precision"
    run(index, encoder)
    assert index.precisions == ()
