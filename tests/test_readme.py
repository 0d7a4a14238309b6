"""The README's example runs."""

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_examples_run_and_print_what_they_say(capsys):
    search, geometry = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(search, "README.md", "exec"), {})
    # Each query is a frame of a video, which is found, at that frame.
    assert capsys.readouterr().out.strip() == "[0 1 2] [40 40 40] (3, 5)"
    exec(compile(geometry, "README.md", "exec"), {})
    shapes, gradient = capsys.readouterr().out.strip().splitlines()
    assert shapes == "(16,) (2, 1, 16, 5)"
    assert abs(float(gradient)) < 1e3


def test_the_files_that_the_readme_names_exist():
    root = Path(__file__).parent.parent
    for name in re.findall(r"(?:configs|launch|tests|hlformer_jax)/[\w/]+\.(?:py|sh)", README):
        assert (root / name).exists() or name == "configs/x.py", name
