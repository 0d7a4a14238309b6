"""Plain names and docstrings in the package, the benchmarks and the tests, measured in numbers.

Well-kept packages (optax, Flax, Orbax, Starlette) have less than 0.4 % of such names, less than
0.4 % of such docstrings, and at most 4 of such phrases in 1,000 lines. The numbers are a
thermometer: what helps a reader is the noun of the domain, not another filler.
"""

import ast
import collections
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent

PACKAGE = ROOT / "hlformer_jax"

FILLERS = frozenset(
    "one ones own of other others there here known unknown kept asked given made found whole"
    " wanted chosen told theirs ours held joined fused taken left said seen due gone begun back"
    " away among above below near far apart also such same each every some any none half so thus"
    " then now begin began named called meant".split()
)
"""Pronouns, participles and fillers: a name should be a noun of the domain, or a verb."""

FIRST_WORDS = frozenset("what whether how of that those where as whatever whoever".split())
"""A docstring begins with a verb (a function) or a noun (a class, a module), not with these."""

PHRASES = re.compile(
    r"\b(what is|what was|is no|are no|those of|that of|of one that|of which|of what|whatever"
    r"|whoever|of those that|as is|so many|likewise)\b",
    re.IGNORECASE,
)

PROGRAMS = re.compile(r"(^|/)((cli|main|__main__)\.py$)|(^|/)cli/|^data/moments\.py$")
"""Modules that read a command line."""

FLAG = re.compile(r"(?<![-\w])--[a-z]")

COMMAND = re.compile(r"(hlformer_jax\.|query --export|ray start )[^,;]*")
"""A command with its flags, which an error may contain."""

LIMITS = {"names": 0.5, "docstrings": 0.5, "phrases": 4.0, "lambdas": 1.0}
"""Percent of names, percent of docstrings, phrases and named lambdas in 1,000 lines."""


def bound_names(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
    return [name.lstrip("_") for name in names if name.strip("_")]


def docstrings(tree: ast.AST) -> list[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)]
    return [text for text in texts if text]


def measure(paths: list[pathlib.Path]) -> dict[str, float]:
    counts: collections.Counter[str] = collections.Counter()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        names, documented, lines = bound_names(tree), docstrings(tree), text.splitlines()
        first_words = [re.match(r"[A-Za-z]*", text).group().lower() for text in documented]
        assignments = [
            node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign)
        ]
        counts.update(
            all_names=len(names),
            all_docstrings=len(documented),
            lines=len(lines),
            names=sum(name in FILLERS for name in names),
            docstrings=sum(word in FIRST_WORDS for word in first_words),
            phrases=sum(bool(PHRASES.search(line)) for line in lines),
            lambdas=sum(isinstance(node.value, ast.Lambda) for node in assignments),
        )
    return {
        "names": 100 * counts["names"] / max(counts["all_names"], 1),
        "docstrings": 100 * counts["docstrings"] / max(counts["all_docstrings"], 1),
        "phrases": 1000 * counts["phrases"] / max(counts["lines"], 1),
        "lambdas": 1000 * counts["lambdas"] / max(counts["lines"], 1),
    }


FOLDERS = sorted(
    {
        path.parent.relative_to(ROOT)
        for source in (PACKAGE, ROOT / "benchmarks", ROOT / "tests")
        for path in source.rglob("*.py")
    }
)


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_wording_of_a_folder_is_plain(folder):
    measured = measure(sorted((ROOT / folder).glob("*.py")))
    exceeded = {kind: value for kind, value in measured.items() if value > LIMITS[kind]}
    assert not exceeded, f"{folder}: {exceeded}; allowed: {LIMITS}"


def test_measure_counts_bad_wording(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text('"""What is said of those."""\none = lambda: 1\n')
    measured = measure([path])
    assert measured == {"names": 100.0, "docstrings": 100.0, "phrases": 500.0, "lambdas": 500.0}


def messages(tree: ast.AST) -> list[str]:
    """Return the texts of the errors that a module raises, without the values in them."""
    return [
        "".join(
            part.value
            for part in ast.walk(node)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
    ]


LIBRARY = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not PROGRAMS.search(path.relative_to(PACKAGE).as_posix())
]


@pytest.mark.slow  # it takes seconds
def test_errors_of_the_library_do_not_name_flags():
    naming_flags = {
        f"{path.relative_to(PACKAGE)}: {message}"
        for path in LIBRARY
        for message in messages(ast.parse(path.read_text(encoding="utf-8")))
        if FLAG.search(COMMAND.sub("", message))
    }
    assert not naming_flags
    assert FLAG.search(messages(ast.parse('raise ValueError(f"--host={host} is empty")'))[0])
