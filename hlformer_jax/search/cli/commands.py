"""The commands of the search, in the order in which --help lists them.

A command is a function of its parsed options that returns nothing; its docstring is its help. It
raises a `UserError` for an error that the user can correct, which `__main__` prints as one line.
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
