"""Command lines: flags, exit statuses, and a wrong input as one line on standard error.

A command ends with `except (UserError, OSError) as error: return command.fail(str(error))`.
"""

import os
import signal
import sys
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError, family_of, flat, leaves, load, locate
from hlformer_jax.errors import suggestion
from hlformer_jax.field_names import COMMON_NAMES, ENVIRONMENT, field_suggestion


def fail(message: str) -> int:
    """Prints what is wrong; returns the exit status."""
    print(f"error: {message}", file=sys.stderr)
    return 1


def interrupted() -> int:
    """Prints that Ctrl-C ended the program at once; returns the exit status."""
    print("interrupted; the same command resumes from the newest checkpoint", file=sys.stderr)
    return 128 + signal.SIGINT


def cores() -> int:
    """The number of cores that this process may use; macOS does not say, and has all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def three_digits(value: float) -> str:
    """A number with three significant digits or all of its whole part, never with an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:.3g}'):f}"


def print_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    left: Collection[str] = (),
    width: int | None = None,
) -> None:
    """Prints a table: the first column and those of `left` to the left, the others to the right.

    It is `width` characters wide at most; by default as the terminal is, in a file as it needs.
    """
    import rich.box  # here, so that a wrong command is answered at once
    import rich.console
    import rich.markup
    import rich.table

    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, title_justify="left")
    table.title = rich.markup.escape(title) or None
    for index, name in enumerate(head):
        align_left = index == 0 or name in left
        table.add_column(name, justify="left" if align_left else "right", no_wrap=index == 0)
    for row in rows:
        table.add_row(*map(rich.markup.escape, row))
    console = rich.console.Console(width=width)
    if width is None and not console.is_terminal:
        wide = rich.console.Console(width=400)
        console = rich.console.Console(width=wide.measure(table).maximum)
    console.print(table)


def parse(argv: Sequence[str]) -> list[str]:
    """Parses flags; a wrong one is one line, not a traceback."""
    argv = _located(argv)
    try:
        return flags.FLAGS(argv)
    except Exception as error:  # ml_collections passes on whatever a configuration file raises
        sys.exit(fail(_fault(error, argv)))


def _located(argv: Sequence[str]) -> list[str]:
    """The command line with the path of the package's configuration where --config names one."""
    located = list(argv)
    for i, option in enumerate(argv):
        flag, equals, file = option.partition("=")
        if flag in ("--config", "-config") and equals:
            located[i] = f"--config={_place(file)}"
        elif option in ("--config", "-config") and i + 1 < len(argv):
            located[i + 1] = _place(argv[i + 1])
    return located


def _place(file: str) -> str:
    """The place of a configuration file, with what stands behind its colon."""
    path, _ = _split(file)
    return f"{locate(path)}{file[len(path) :]}"


def default_workdir() -> str:
    """The directory runs/NAME, NAME that of the configuration file and what follows its colon."""
    path, name = _split(getattr(flags.FLAGS["config"], "config_filename"))  # noqa: B009 - untyped
    return os.path.join("runs", "-".join(filter(None, (Path(path).stem, name))))


def last_line(error: Exception) -> str:
    """The last line of a message; those before it are a traceback or a context."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip().strip('"')


def _fault(error: Exception, argv: Sequence[str]) -> str:
    """Explain an error of a command line: its configuration file, a field, or an option."""
    options = [option.lstrip("-") for option in argv[1:]]
    files = [option.partition("=")[2] for option in options if option.startswith("config=")]
    files += [after for option, after in pairwise(options) if option == "config"]
    if files:
        try:
            config = load(*_split(files[-1]))
        except ConfigError as fault:
            return str(fault)
        names = [option.partition("=")[0] for option in options if option.startswith("config.")]
        for name in names:
            if unknown := _unknown(name.removeprefix("config."), config):
                return unknown
        for name in names:
            if f"flag --{name}=" in str(error) and (meaning := _meaning(name, config)):
                value = str(error).partition(f"flag --{name}=")[2].partition(": ")[0]
                return f"{name} is {value}: it must be {meaning}"
    return f"{last_line(error)} (--helpshort lists the options)"


def _split(file: str) -> tuple[str, str]:
    """A configuration file and what stands behind its colon."""
    path, _, name = file.partition(":")
    return path, name


def _meant(name: str, key: str, known: Collection[str], config: ConfigDict) -> str:
    """Return what may be meant by a name that no field or section has."""
    if key in ENVIRONMENT or key in COMMON_NAMES:
        return field_suggestion(key, flat(config))
    return suggestion(key, known) or field_suggestion(name, flat(config))


def _meaning(name: str, config: ConfigDict) -> str:
    """Describe the allowed values of a field; "" for a sweep's own fields, which have no rule."""
    name = name.removeprefix("config.")
    if name.startswith("base.") and "base" in config:
        name, config = name.removeprefix("base."), config.base
    field = dict(leaves(family_of(config))).get(name)
    return field.rule.meaning if field else ""


def _unknown(name: str, config: ConfigDict) -> str:
    """Explain an unknown name of a field; "" if the field exists."""
    section: Any = config
    for key in name.split("."):
        known = section.keys() if isinstance(section, ConfigDict) else ()
        if key not in known:
            return f"config.{name}: there is no such field{_meant(name, key, known, config)}"
        section = section[key]
    return ""
