"""The commands, a module for each: its one line of help `HELP`, its options, and what it does."""

from collections.abc import Mapping
from types import ModuleType

from hlformer_jax.search.commands import (
    add,
    cut,
    demo,
    evaluate,
    features,
    index,
    prune,
    query,
    remove,
    serve,
    status,
    upload,
    verify,
)

COMMANDS: Mapping[str, ModuleType] = {
    "index": index,
    "query": query,
    "serve": serve,
    "status": status,
    "add": add,
    "remove": remove,
    "prune": prune,
    "verify": verify,
    "cut": cut,
    "evaluate": evaluate,
    "features": features,
    "upload": upload,
    "demo": demo,
}
"""By name, in the order in which they are listed; each has `HELP`, `add_arguments` and `run`."""

COMPILING = {"index", "query", "serve", "add", "evaluate", "features", "demo"}
"""Those that run an encoder or a model: their compiled programs are kept for the next process."""
