"""The import rule: which module may import which, and which file owns a dependency.

A module's place is its name in `MAY_IMPORT`, or its folder's. Imports inside of functions count as
well. Add a new module to `MAY_IMPORT`.
"""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "hlformer_jax"

# From the bottom up: a folder may import folders with a line above it, and itself.
MAY_IMPORT = {
    "typing": set(),
    "errors": set(),
    "text": set(),
    "pytrees": set(),
    "terminal": {"text"},
    "lazy": {"errors"},
    "files": {"errors", "text"},
    "config": {"errors", "text", "files"},
    "cli": {"lazy", "errors", "text", "terminal", "files", "config"},
    "ops": {"lazy", "typing", "errors", "pytrees"},
    "runtime": {"typing", "errors", "terminal", "files"},
    "data": {"typing", "errors", "terminal", "text", "lazy", "files", "config", "cli", "runtime"},
    "losses": {"lazy", "typing", "ops"},
    "nn": {"lazy", "typing", "ops"},
    "models": {"typing", "pytrees", "config", "ops", "runtime", "nn"},
    "retrieval": {
        "lazy", "typing", "errors", "text", "pytrees", "files", "config", "cli", "ops", "runtime",
        "data", "models",
    },
    "encoders": {"lazy", "typing", "errors", "text", "files"},
    "training": {
        "typing", "errors", "terminal", "text", "pytrees", "files", "config", "ops", "losses",
        "runtime", "data", "models", "retrieval", "encoders",
    },
    "torch_checkpoint": {"errors", "config", "cli", "training"},
    "figures": {
        "typing", "errors", "terminal", "text", "lazy", "files", "config", "cli", "ops",
        "runtime", "data", "models", "retrieval", "training",
    },
    "sweep": {
        "errors", "terminal", "text", "files", "config", "cli", "runtime", "data", "models",
        "retrieval", "training", "figures",
    },
    "video": {"typing", "errors", "text", "files"},
    "search": {
        "typing", "errors", "terminal", "text", "lazy", "files", "config", "cli", "runtime", "data",
        "models", "retrieval", "training", "encoders", "video",
    },
    "main": {
        "errors", "terminal", "lazy", "files", "config", "cli", "runtime", "data", "retrieval",
        "training", "encoders",
    },
    "": {"lazy", "ops", "nn", "losses", "retrieval"},  # the package itself
}  # fmt: skip

# Within the search, from the bottom up.
SEARCH_MAY_IMPORT = {
    "times": set(),
    "index": set(),
    "encoder": {"index"},
    "signals": {"times", "index"},
    "query": {"times", "index", "encoder", "signals"},
    "ingest": {"index", "signals"},
    "export": {"times", "query"},
    "evaluate": {"index", "signals", "query"},
    "demo": {"times", "index", "encoder", "ingest"},
    "serve": {"times", "index", "signals", "query", "ingest", "export"},
    "cli": {
        "times",
        "index",
        "encoder",
        "signals",
        "query",
        "ingest",
        "export",
        "evaluate",
        "serve",
        "demo",
    },
    "__main__": {"cli"},
    "": {"index", "signals", "query"},  # the package itself
}  # fmt: skip

# The only module that may import a dependency.
OWNER = {
    "orbax": "training.checkpoints",
    "tensorflow_datasets": "data.prepared",
    "ray": "search.ingest.cluster",
    "psycopg": "search.signals.postgres",
    "opentimelineio": "search.export.timelines",
    "mcp": "search.serve.mcp",
}
AT_MOST_ONE_MODULE = {"matplotlib", "tensorboardX"}
NOT_IN_OPS = {"flax", "optax", "orbax", "chex"}
OPTIMISER = "ops.optim"
"""The module of `ops` that makes optax's optimisers Riemannian, and so may import optax."""
NOWHERE = {"torch", "tensorflow"}
NO_NAMES = {"utils", "common", "helpers", "misc"}
MAX_LINES = 900
"""A longer file holds more than one concept."""


def modules(package: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the package's modules by dotted name; a folder's `__init__` has the folder's name."""
    paths = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


def imports(path: pathlib.Path) -> set[str]:
    """Return the dotted names that a file imports; `from a import b` is a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def violations(package: pathlib.Path) -> list[str]:
    messages = []
    users: dict[str, list[str]] = {}
    names = modules(package)
    places = {name.split(".")[0] for name in names}
    for name, path in names.items():
        place = name.split(".")[0]
        if place not in MAY_IMPORT:
            messages.append(
                f"{name}: has no place in MAY_IMPORT of tests/test_imports.py; give it one"
            )
            continue
        if name.split(".")[-1] in NO_NAMES:
            messages.append(f"{name}: name it by its concept")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES:
            messages.append(f"{name}: has {lines} lines, more than {MAX_LINES}: two concepts?")
        for imported in sorted(imports(path)):
            first, _, rest = imported.partition(".")
            target = rest.split(".")[0]
            if first == "":
                messages.append(f"{name}: import {imported} by its full name")
            elif imported.startswith(f"{package.name}.search."):
                imported_folder = imported.split(".")[2]
                folder = (name.split(".") + [""])[1] if place == "search" else None
                allowed = SEARCH_MAY_IMPORT.get(folder, set()) | {folder}
                if (
                    folder is not None
                    and imported_folder in SEARCH_MAY_IMPORT
                    and imported_folder not in allowed
                ):
                    messages.append(f"{name}: must not import {rest}")
                elif "search" not in MAY_IMPORT[place] | {place}:
                    messages.append(f"{name}: must not import {rest}")
            elif first == package.name and target in places - {""}:
                if target not in MAY_IMPORT[place] | {place}:
                    messages.append(f"{name}: must not import {rest}")
            elif OWNER.get(first, name) != name:
                messages.append(f"{name}: only {OWNER[first]} may import {first}")
            elif first in NOWHERE or (
                place == "ops" and first in NOT_IN_OPS and (name, first) != (OPTIMISER, "optax")
            ):
                messages.append(f"{name}: must not import {first}")
            elif first in AT_MOST_ONE_MODULE and name not in users.setdefault(first, []):
                users[first].append(name)
    for dependency, importers in users.items():
        if len(importers) > 1:
            messages.append(f"{', '.join(importers)}: only one module may import {dependency}")
    return messages


def test_package_follows_the_import_rule():
    messages = violations(PACKAGE)
    assert not messages, "\n".join(messages)


PUBLIC = {"_asdict", "_fields", "_make", "_replace"}
"""Public names with a leading underscore: methods and attributes of NamedTuples."""

PRIVATE_PEER_NAMES = {"_attend"}
"""Private names of peers: hyperbolix has no public function of attention alone."""


def private_names(path: pathlib.Path) -> set[str]:
    """Return the private names that a file imports or reads from other objects than `self`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                names.add(node.attr)
    private = {name for name in names if name.startswith("_") and not name.startswith("__")}
    return private - PUBLIC - PRIVATE_PEER_NAMES


def test_benchmarks_use_only_public_names():
    benchmarks = sorted((ROOT / "benchmarks").glob("*.py"))
    assert benchmarks
    assert {path.name: names for path in benchmarks if (names := private_names(path))} == {}


def test_package_does_not_import_benchmarks():
    for name, path in modules(PACKAGE).items():
        assert not any(x.split(".")[0] == "benchmarks" for x in imports(path)), name


def test_import_rule_has_no_cycle():
    order = list(MAY_IMPORT)
    for place, allowed in MAY_IMPORT.items():
        assert allowed <= set(order), f"{place} may import what has no place"
        assert all(order.index(imported) <= order.index(place) for imported in allowed), place
