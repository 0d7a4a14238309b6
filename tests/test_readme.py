"""The examples of the README and of the packages' docstrings run."""

import re
from pathlib import Path

import hlformer_jax.retrieval

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _examples(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_example_of_the_geometry_prints_what_it_says(capsys):
    [geometry] = _examples(README)
    exec(compile(geometry, "README.md", "exec"), {})
    shapes, gradient = capsys.readouterr().out.strip().splitlines()
    assert shapes == "(16,) (2, 1, 16, 5)"
    assert abs(float(gradient)) < 1e3


def test_the_example_of_a_search_finds_each_frame_in_its_video(capsys):
    [search] = _examples(hlformer_jax.retrieval.__doc__)
    exec(compile(search, "hlformer_jax/retrieval", "exec"), {})
    assert capsys.readouterr().out.strip() == "[0 1 2] [40 40 40] (3, 5)"


def test_the_files_that_the_readme_names_exist():
    for name in re.findall(r"(?:configs|launch|tests|hlformer_jax)/[\w/]+\.(?:py|sh|md)", README):
        assert (ROOT / name).exists() or name == "configs/x.py", name


def test_the_readme_is_read_in_one_sitting():
    assert len(README.splitlines()) < 170
