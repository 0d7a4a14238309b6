"""The commands of the search tool, in the order in which --help lists them.

A command is a function that takes the parsed options and returns nothing; its docstring is its
help. For an error that the user can correct it raises a `UserError`, which `__main__` prints as one
line.
"""

from hlformer_jax.search.cli import demo, evaluate, index, query, serve, upkeep
from hlformer_jax.search.cli.options import Command

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        index.index, index.add, index.watch, query.query, serve.serve, serve.mcp, upkeep.status,
        upkeep.remove, upkeep.tag, index.transcribe, upkeep.prune, upkeep.verify, query.cut,
        evaluate.evaluate, evaluate.features, upkeep.upload, demo.demo,
    )
}  # fmt: skip
