"""Shell blocks of Markdown pages, and checks whether their commands could start.

A shell block is an indented or fenced block whose lines begin with a program (`PROGRAMS`). An HTML
comment before it, `<!-- not run: REASON -->`, says that it cannot be executed by a test.
"""

import functools
import re
import shlex
import textwrap
import tomllib
from typing import NamedTuple

from absl import flags as absl_flags
from ml_collections import ConfigDict
from processes import ROOT

from hlformer_jax.config import ConfigError, flat, leaves, load, locate
from hlformer_jax.search.__main__ import parser as search_parser
from hlformer_jax.search.cli.commands import COMMANDS

PROGRAMS = ("bash", "python", ".venv/bin/python", "sbatch", "pip", "source", "hlformer-")

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(
    r"(?: *<!-- not run: (?P<reason>[^>]+) -->\n+)?"
    r"(?P<body>(?:^```(?:bash|sh|console|shell)\n(?:.*\n)*?^```$)|(?:^(?: {4}.*\n)+))",
    re.MULTILINE,
)
_FENCED = re.compile(r"^```(?!bash|sh\b|console|shell).*?^```$\n?", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A shell block of a page."""

    page: str
    line: int
    text: str
    reason: str  # why it is not run; "" if it is

    @property
    def name(self) -> str:
        """Place of the block, for the name of a test."""
        return f"{self.page}:{self.line}"

    @property
    def usage(self) -> bool:
        """True for a form to fill in, which has optional parts in brackets or a placeholder."""
        return "[--" in self.text or re.search(r" (NAME|COMMAND)\b", self.text) is not None


def blocks(page):
    """Return the shell blocks of a page."""
    content = page.read_text(encoding="utf-8")
    # Other fenced blocks keep their lines, so that places stay right.
    content = _FENCED.sub(lambda match: re.sub(r"[^\n]+", "", match[0]), content)
    shell_blocks = []
    for match in _BLOCK.finditer(content):
        body = textwrap.dedent(match["body"])  # a list has indented fences
        lines = [line for line in body.splitlines() if not line.startswith("```")]
        if lines and lines[0].startswith(PROGRAMS):
            line = content.count("\n", 0, match.start("body")) + 1
            name = str(page.relative_to(ROOT))
            shell_blocks.append(Block(name, line, "\n".join(lines) + "\n", match["reason"] or ""))
    return shell_blocks


def usages(page):
    """Return the lines of a page that show a command of the search without its program."""
    content = _FENCED.sub("", page.read_text(encoding="utf-8"))
    usage_lines, current = [], None
    for line in content.splitlines():
        if re.match(rf" {{4}}({'|'.join(COMMANDS)}) [\[A-Z\"-]", line):
            current = line.strip()
            usage_lines.append(current)
        elif current and line.startswith(8 * " "):
            usage_lines[-1] += f" {line.strip()}"
        else:
            current = None
    return usage_lines


def commands(text):
    """Return the commands of a block, each as its words; joins lines that end with a backslash."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def check(words):
    """Raise an AssertionError that says why a command could not start."""
    program, *rest = words
    if program == ".venv/bin/python":
        program = "python"
    if program == "python" and rest[:2] == ["-m", "pip"]:
        program, rest = "pip", rest[2:]
    if program == "bash":
        _check_script(*rest)
    elif program == "sbatch":
        while rest[0].startswith("--"):  # options of Slurm itself
            rest = rest[1:]
        _check_script(*rest)
    elif program == "python":
        assert rest[:1] == ["-m"], words
        assert rest[1] == "benchmarks" or rest[1].startswith("hlformer_jax."), words
        _check_module(rest[1].removeprefix("hlformer_jax."), rest[2:])
    elif program == "pip":
        _check_pip(rest)
    elif program == "source":
        assert rest == [".venv/bin/activate"], words
    else:
        scripts = _project()["scripts"]
        assert program in scripts, f"there is no command {program!r}"
        module = scripts[program].partition(":")[0].removeprefix("hlformer_jax.")
        _check_module(module.removesuffix(".__main__"), rest)


def check_usage(text):
    """Raise an AssertionError if a usage line names an option that its command lacks."""
    name = text.split()[0]
    options = {option for option, _ in COMMANDS[name].options}
    options |= {option.replace("--", "--no-", 1) for option in options}
    text = text.partition("    #")[0]
    for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text):
        assert option in options, f"{name} has no {option}"


def _check_script(path, *arguments):
    assert (ROOT / path).is_file(), f"there is no {path}"
    name = path.removeprefix("launch/").removesuffix(".sh")
    if name in ("local", "slurm"):
        _check_module("main", arguments)
    elif name in ("sweep", "slurm_sweep"):
        _check_module("sweep", arguments)
    elif name == "search" and arguments and arguments[0] in COMMANDS:
        _check_module("search", arguments)
    else:
        script = (ROOT / path).read_text(encoding="utf-8")
        for argument in arguments:
            option = argument.partition("=")[0]
            is_option = not option.startswith("--") or option == "--help" or option in script
            assert is_option, f"{path} has no {option}"


def _check_module(name, arguments):
    folder = ROOT / ("" if name == "benchmarks" else "hlformer_jax") / name.replace(".", "/")
    file = folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")
    assert file.is_file(), f"there is no module {name}"
    if name == "search":
        if "--help" not in arguments:
            search_parser().parse_args(list(arguments))
        return
    source = file.read_text(encoding="utf-8")
    options = set(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source)) | set(absl_flags.FLAGS)
    options |= set(re.findall(r'add_argument\(\s*"--([\w-]+)"', source))
    config = next((x.partition("=")[2] for x in arguments if x.startswith("--config=")), None)
    fields = _fields(config or "anet")
    for argument in arguments:
        if not argument.startswith("--"):
            continue
        option = argument[2:].partition("=")[0]
        if option.startswith("config."):
            assert config, f"{option} needs --config"
            assert option.removeprefix("config.") in fields, f"there is no field {option}"
        else:
            assert option in options, f"{name} has no --{option}"


@functools.cache
def _fields(config):
    """Return the names of all fields of a configuration; a sweep has the fields of its base too."""
    path, _, name = config.partition(":")
    file = ROOT / locate(path)
    names = {name for family in ("prvr", "hover") for name, _ in leaves(family)}
    try:
        loaded: ConfigDict = load(file, name)
    except ConfigError as error:
        # The configuration reads a folder that only its user has.
        if "features.json is missing" in str(error) or "has no config.json" in str(error):
            return names
        raise AssertionError(f"--config={config}: {error}") from None
    return set(flat(loaded)) | set(loaded)


@functools.cache
def _project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _check_pip(arguments):
    """Check that pip installs this checkout or a wheel's file: no index has the package's name."""
    assert arguments[0] == "install", arguments
    for argument in arguments[1:]:
        if argument in ("-e", "-c", "launch/constraints.txt"):
            continue
        match = re.fullmatch(r"(\.|\S+\.whl)(?:\[([\w,]+)\])?", argument)
        assert match, f"{argument} is neither this checkout nor a wheel"
        for extra in filter(None, (match[2] or "").split(",")):
            assert extra in _project()["optional-dependencies"], f"there is no extra {extra!r}"
