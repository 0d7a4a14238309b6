"""Examples of the README, the docs and docstrings, shell blocks and notebooks run.

`shell_blocks` decides which shell blocks are run.
"""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import processes
import pytest
import shell_blocks
import videos

import hlformer_jax as hl
from hlformer_jax import encoders, search
from hlformer_jax.search.ingest.extract import index_folder

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _examples(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow  # it takes seconds
def test_example_of_geometry_prints_its_comments(capsys):
    [geometry] = _examples(README)
    exec(compile(geometry, "README.md", "exec"), {})
    shapes, gradient = capsys.readouterr().out.strip().splitlines()
    assert shapes == "(16,) (2, 1, 16, 5)"
    assert abs(float(gradient)) < 1e3


@pytest.mark.slow  # it compiles for seconds
@pytest.mark.usefixtures("standard_promotion")
def test_example_of_spaces_and_optimisers_prints_its_comments(capsys):
    examples = _examples((ROOT / "docs" / "geometry.md").read_text(encoding="utf-8"))
    exec(compile("\n".join(examples), "docs/geometry.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        *("True True", "Lorentz ()", "(8, 3) ()", "True True", "True True", "(2, 6, 3)", "(5, 8)")
    ]


@pytest.mark.slow  # it compiles for seconds
@pytest.mark.usefixtures("standard_promotion")
def test_example_of_layers_trains_points_and_classes(capsys):
    examples = _examples((ROOT / "docs" / "layers.md").read_text(encoding="utf-8"))
    exec(compile("\n".join(examples), "docs/layers.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        *("(8, 4) (4,)", "Poincare ()", "(8, 2)", "(8, 16)", "(8, 2)", "True True")
    ]


@pytest.mark.slow  # it compiles for seconds
@pytest.mark.usefixtures("standard_promotion")
def test_example_of_each_library_learns(capsys):
    [example] = _examples((ROOT / "docs" / "peers.md").read_text(encoding="utf-8"))
    exec(compile(example, "docs/peers.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "True"


def test_example_of_a_search_finds_each_frame_in_its_video(capsys):
    examples = _examples((ROOT / "docs" / "training.md").read_text(encoding="utf-8"))
    [search] = [example for example in examples if "corpus.search" in example]
    exec(compile(search, "docs/training.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "[0 1 2] [40 40 40] (3, 5)"


@pytest.mark.slow  # it takes seconds
def test_examples_of_video_search_print_moments(tmp_path, monkeypatch, capsys):
    folder = ROOT / "tests" / "encoders" / "golden" / "siglip"
    (tmp_path / "ENCODER").symlink_to(folder)
    (tmp_path / "videos").mkdir()
    for name, first in (("a.mp4", 0), ("b.mp4", 20)):
        videos.write(
            tmp_path / "videos" / name, paint=lambda k, first=first: videos.grey(k + first)
        )
    encoder = encoders.load(folder)
    index = search.Index.create(tmp_path / "DIR", tmp_path / "videos", encoder, 2, (str(folder),))
    index_folder(index, encoder, workers=0)
    monkeypatch.chdir(tmp_path)
    [example] = _examples(search.__doc__)
    exec(compile(example, "hlformer_jax/search", "exec"), {})
    *moments, last = capsys.readouterr().out.splitlines()
    matches = [re.fullmatch(r"([ab].mp4): (.*) to (.*) s", line) for line in moments]
    assert {match[1] for match in matches} == {"a.mp4", "b.mp4"}
    assert all(0 <= float(match[2]) < float(match[3]) <= 3 for match in matches)
    assert last == f"(2, {encoder.width}) best_frame"
    [example] = _examples((ROOT / "docs" / "search" / "programs.md").read_text(encoding="utf-8"))
    exec(compile(example, "docs/search/programs.md", "exec"), {})
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert set(printed) == {"a.mp4", "b.mp4"}


def test_files_named_by_the_readme_exist():
    for name in re.findall(r"(?:configs|launch|tests|hlformer_jax)/[\w/]+\.(?:py|sh|md)", README):
        assert (ROOT / name).exists() or name == "configs/x.py", name


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_to_files_of_the_repository_resolve(name):
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_public_function_has_an_entry_in_the_api():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")]
    entries = tuple(re.findall(r"^::: ([\w.]+)$", "\n".join(pages), re.MULTILINE))
    for namespace in (hl.losses, hl.nn, hl.retrieval):
        for name in namespace.__all__:
            value = getattr(namespace, name)
            module = value.__name__ if inspect.ismodule(value) else value.__module__
            assert module in entries, name


# Shell blocks


BLOCKS = [block for page in shell_blocks.PAGES for block in shell_blocks.blocks(page)]
USAGES = [usage for page in shell_blocks.PAGES for usage in shell_blocks.usages(page)]


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if not block.usage], ids=lambda block: block.name
)
def test_documented_command_uses_existing_files_and_options(block):
    for words in shell_blocks.commands(block.text):
        shell_blocks.check(words)


@pytest.mark.parametrize("usage", USAGES, ids=lambda usage: usage.split("    #")[0][:40])
def test_documented_usage_has_existing_options(usage):
    shell_blocks.check_usage(usage)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python -m hlformer_jax.main --config=configs/anet.py --wrkdir=D", "has no --wrkdir"),
        ("python -m hlformer_jax.main --config=configs/ant.py", "configs/ant.py"),
        ("python -m hlformer_jax.main --config=anet --config.train.epoch=3", "config.train.epoch"),
        ("python -m benchmarks plan --config.dtype=bfloat16", "config.dtype needs --config"),
        ("python -m hlformer_jax.mian --config=anet", "no module mian"),
        ("bash launch/swep.sh --config=anet", "launch/swep.sh"),
        ("bash launch/sweep.sh --config=configs/sweeps/lorentz_window.py:debg", "debg"),
        ("bash launch/search.sh --dmeo", "has no --dmeo"),
        ("pip install -e '.[cuda11]'", "no extra 'cuda11'"),
        ('pip install "hlformer-jax[search]"', "neither this checkout nor a wheel"),
        ("hlformer-tran --config=anet", "hlformer-tran"),
    ],
)
def test_wrong_documented_command_is_detected(command, message):
    [words] = shell_blocks.commands(command)
    with pytest.raises(AssertionError, match=re.escape(message)):
        shell_blocks.check(words)


def test_no_text_installs_the_package_by_its_name():
    """Check all texts: whoever registers the name decides what such a command installs."""
    paths = [*shell_blocks.PAGES, *(ROOT / "hlformer_jax").rglob("*.py"), ROOT / "CHANGELOG.md"]
    by_name = re.compile(r"pip install [^\n`]*(?<![\w/.])hlformer[-_]jax(?![-_\w.]*\.whl)")
    assert by_name.search('pip install -U "hlformer-jax[search]"')
    offending = [str(path) for path in paths if by_name.search(path.read_text(encoding="utf-8"))]
    assert offending == []


def test_main_pages_have_commands_that_are_run():
    run = {block.page for block in BLOCKS if not block.reason}
    assert {"README.md", "docs/index.md", "docs/hover.md", "docs/reproduce.md"} <= run
    # A reason is a sentence, not just a mark.
    assert all(len(block.reason) > 10 for block in BLOCKS if block.reason)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout with the environment of the tests.

    tests/search/cli/test_launch.py tests how the launch scripts make one.
    """
    root = tmp_path_factory.mktemp("documentation") / "checkout"
    ignored = shutil.ignore_patterns(".git", ".venv*", "runs", "build", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, root, symlinks=True, ignore=ignored)
    (root / ".venv").symlink_to(sys.prefix)
    script = root / "launch" / "environment.sh"
    script.write_text(f"{script.read_text(encoding='utf-8')}\nenvironment() {{ :; }}\n")
    return root


RUN = [block for block in BLOCKS if not block.reason and not block.usage]


@pytest.mark.slow
@pytest.mark.parametrize("block", RUN, ids=lambda block: block.name)
def test_documented_command_runs(block, checkout):
    environment = processes.environment() | {
        "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(checkout),
        "TFDS_DATA_DIR": str(checkout / "prepared"),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=checkout, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{block.text}\n{done.stderr[-3000:]}"


# Notebooks


NOTEBOOKS = sorted((processes.ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
# Jupyter's client and kernel raise warnings about their transport and event loop.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(processes.ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
