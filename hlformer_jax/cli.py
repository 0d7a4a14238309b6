"""Command lines: flags, exit statuses, tables, and errors as one line on standard error.

A command ends with `except (UserError, OSError) as error: return cli.fail(describe(error))`.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict

from hlformer_jax import files, terminal
from hlformer_jax.config import config_names, family_of, flat, leaves, load, locate
from hlformer_jax.config.names import COMMON_NAMES, ENVIRONMENT, field_suggestion
from hlformer_jax.errors import ConfigError
from hlformer_jax.lazy import optional
from hlformer_jax.text import printable, suggestion

QUIET = flags.DEFINE_bool("quiet", False, "Print no progress, only results, warnings and errors.")
"""Flag of all programs with absl flags; each declares it a key flag, so --helpshort lists it."""

_NAMES = (
    "caption checkpoint config coordinator embeddings encoder init member mode moments only"
    " overwrite process processes query scores task tasks video workdir"
)
_FLAGS = {name: f"--{name}" for name in _NAMES.split()} | {"without": "--except"}
"""The flag of each argument that an error of the library may name."""

_HELP = ("?", "help", "helpshort", "helpfull", "helpxml")
"""Names of absl's flags that print the options and end the program."""

_ARGUMENT = re.compile(rf"`({'|'.join(_FLAGS)})((?:\.\w+)*)`")


_HOME = re.compile("^(--?[a-z_]+=)~/")
"""An option with a path that begins with ~, which a shell expands only at the start of a word."""


def fail(message: str) -> int:
    """Print an error on standard error; return the exit status 1.

    Args:
      message: the error. The library names arguments in backticks; these are printed as flags, for
        example `workdir` as --workdir.
    """
    line = _ARGUMENT.sub(lambda match: _FLAGS[match[1]] + match[2], message)
    print(f"{terminal.in_red('error:', sys.stderr)} {printable(line)}", file=sys.stderr)
    return 1


def interrupted() -> int:
    """Print that Ctrl-C ended the program and how to resume; return the exit status."""
    line = "interrupted; the same command resumes from the newest checkpoint, if there is one"
    print(line, file=sys.stderr)
    return 128 + signal.SIGINT


def command_line(module: str, *arguments: object) -> str:
    """Return a command of the package, ready to be pasted into this program's shell."""
    return shlex.join([_python(), "-m", f"hlformer_jax.{module}", *map(str, arguments)])


def _python() -> str:
    """Return this environment's Python: "python" if the shell finds it, else its path."""
    on_path = shutil.which("python")
    if on_path and os.path.dirname(os.path.abspath(on_path)) == os.path.dirname(sys.executable):
        return "python"
    program = Path(sys.executable)
    in_folder = program.is_relative_to(Path.cwd())
    return str(program.relative_to(Path.cwd()) if in_folder else program)


def cores() -> int:
    """Return the number of cores that this process may use; on macOS, all cores of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def path_argument(text: str) -> Path:
    """Parse a path, which may begin with ~, for argparse; refuse an empty text."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: give a path (. is the current folder)")
    return files.expand(text)


def three_digits(value: float) -> str:
    """Format a number with three significant digits, no exponent, and no decimals from 100 on."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:.3g}'):f}"


def print_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str = "",
    text_columns: Collection[str] = (),
    width: int | None = None,
    groups: Sequence[int] = (),
) -> None:
    """Print a table.

    Args:
      head: the names of the columns; the first column is aligned to the left.
      rows: the cells of each row.
      title: the title above the table.
      text_columns: names of further columns that are aligned to the left.
      width: the largest width in characters. None: on a terminal its width, with a wider table
        printed in several parts; in a file or a pipe, as wide as needed.
      groups: numbers of adjacent columns that stay in one part, from left to right, without the
        first column; by default each column is a group.
    """
    columns = terminal.width() if width is None else None
    if columns is not None:
        heading = title.partition("\n")[0]
        for part in _split_columns([head, *rows], columns, groups or [1] * (len(head) - 1)):
            _print_part(part[0], part[1:], title, text_columns, columns)
            title = f"{heading} (continued)" if title else ""
    else:
        _print_part(head, rows, title, text_columns, width)


def _split_columns(
    rows: Sequence[Sequence[str]], width: int, groups: Sequence[int]
) -> list[list[list[str]]]:
    """Split the groups of columns of a table into parts of at most `width` characters.

    The first column is repeated in each part.
    """
    # A column takes two blanks beside its longest cell; the table takes one at each end.
    widths = [2 + max(map(len, column)) for column in zip(*rows, strict=True)]
    parts: list[list[int]] = [[]]
    used, start = 2 + widths[0], 1
    for size in groups:
        group = range(start, start + size)
        needed = sum(widths[index] for index in group)
        if parts[-1] and used + needed > width:
            parts.append([])
            used = 2 + widths[0]
        parts[-1] += group
        used, start = used + needed, start + size
    return [[[row[0], *(row[index] for index in part)] for row in rows] for part in parts]


def _print_part(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str,
    text_columns: Collection[str],
    width: int | None,
) -> None:
    import rich.box  # imported here so that a wrong command fails without its delay
    import rich.console
    import rich.markup
    import rich.table

    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, title_justify="left")
    table.title = rich.markup.escape(title) or None
    for index, name in enumerate(head):
        align_left = index == 0 or name in text_columns
        table.add_column(name, justify="left" if align_left else "right", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(rich.markup.escape(printable(cell)) for cell in row))
    if width is None:
        width = rich.console.Console(width=10**6).measure(table).maximum
    rich.console.Console(width=width).print(table)


def run_program(main: Callable[[Sequence[str]], int]) -> None:
    """Run the main function of a module that defines absl flags, and exit with its status."""
    module = sys.modules[main.__module__]
    if module.__name__ != "__main__":  # a console command; absl looks for its help in these
        sys.modules["__main__"].__doc__, sys.argv[0] = module.__doc__, module.__name__
    app.run(main, flags_parser=parse)


def parse(argv: Sequence[str]) -> list[str]:
    """Parse absl flags; exit with a one-line error if one is wrong.

    Args:
      argv: the command line, beginning with the program. `--config` may name a file of the
        package, such as `anet`.

    Returns:
      The program and the arguments that are not flags.
    """
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        optional("argcomplete", "search").autocomplete(_completion_parser())
    argv = [_HOME.sub(rf"\1{os.path.expanduser('~/')}", option) for option in argv]
    argv = _with_located_configs(argv)
    files.discard_drafts_on_signals()
    try:
        rest = flags.FLAGS(argv)
    except SystemExit as stopped:  # absl ends with the status 1 after the help, too
        options = {x.lstrip("-").partition("=")[0] for x in argv[1:] if x.startswith("-")}
        sys.exit(stopped.code if options.isdisjoint(_HELP) else 0)
    except Exception as error:  # ml_collections passes on any error of a configuration file
        sys.exit(fail(_flag_error(error, argv)))
    for flag in (flags.FLAGS[x[2:]] for x in _FLAGS.values() if x[2:] in flags.FLAGS):
        values = flag.value if isinstance(flag.value, list) else [flag.value]
        if flag.present and "" in values:  # for example an unset variable of the shell
            sys.exit(fail(f"--{flag.name} is empty: give a value, or leave it out"))
    terminal.silence(QUIET.value)
    if not flags.FLAGS["verbosity"].present:  # JAX logs, for example, that it finds no TPU
        logging.set_verbosity(logging.WARNING)
    return rest


def _completion_parser() -> argparse.ArgumentParser:
    """Return a parser with the program's flags, from which argcomplete finds completions."""
    parser = argparse.ArgumentParser()
    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        if module.startswith("absl."):
            continue
        for flag in defined:
            if flag.boolean:
                parser.add_argument(f"--{flag.name}", action="store_true", help=flag.help)
                continue
            choices = getattr(flag.parser, "enum_values", None)
            if flag.name == "config":  # a shell completes paths if no name of the package fits
                choices = config_names()
            parser.add_argument(f"--{flag.name}", action="append", choices=choices, help=flag.help)
    return parser


def misplaced_flag(places: Mapping[str, Sequence[str]], place: str) -> str | None:
    """Return the error of a flag that would have no effect; None if there is no such flag.

    Args:
      places: for each flag that does not go with everything, what it goes with.
      place: what the program does.
    """
    for name, allowed in places.items():
        flag = flags.FLAGS[name]
        if flag.value != flag.default and place not in allowed:
            return f"--{name} goes with {' or '.join(allowed)}, not with {place}"
    return None


def _with_located_configs(argv: Sequence[str]) -> list[str]:
    """Return the command line with the path of each file that --config names."""
    located = list(argv)
    for i, option in enumerate(argv):
        flag, equals, file = option.partition("=")
        if flag in ("--config", "-config") and equals:
            located[i] = f"--config={_locate(file)}"
        elif option in ("--config", "-config") and i + 1 < len(argv):
            located[i + 1] = _locate(argv[i + 1])
    return located


def _locate(file: str) -> str:
    """Return the path of a configuration file, with the name behind its colon."""
    path, _ = _split(file)
    return f"{locate(path)}{file[len(path) :]}"


def default_workdir() -> str:
    """Return runs/NAME, after the configuration file and the name behind its colon."""
    path, name = _split(getattr(flags.FLAGS["config"], "config_filename"))  # noqa: B009 - untyped
    return os.path.join("runs", "-".join(filter(None, (Path(path).stem, name))))


def last_line(error: Exception) -> str:
    """Return the last line of an error's message; a traceback or context may precede it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip().strip('"')


def _flag_error(error: Exception, argv: Sequence[str]) -> str:
    """Return the message for a wrong command line: its file, an unknown field, or a flag."""
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
            if message := _unknown_field(name.removeprefix("config."), config):
                return message
        for name in names:
            value = str(error).partition(f"flag --{name}=")[2].partition(": ")[0]
            if value and (group := _group(name.removeprefix("config."), config)):
                return f"{name} is a group of fields, not {value}: set {', '.join(group)}"
            if value and (meaning := _field_meaning(name, config)):
                return f"{name} is {value}: it must be {meaning}"
    if not files and (fields := [x.partition("=")[0] for x in options if x.startswith("config.")]):
        return (
            f"--{fields[0]} needs --config, the configuration with this field, for example"
            " --config=configs/anet.py"
        )
    return f"{last_line(error)} (--helpshort lists the options)"


def _split(file: str) -> tuple[str, str]:
    """Split a configuration file from the name behind its colon."""
    path, _, name = file.partition(":")
    return path, name


def _unknown_field(name: str, config: ConfigDict) -> str:
    """Return the message for the name of a field that does not exist; "" if it exists."""
    section: Any = config
    for key in name.split("."):
        keys = section.keys() if isinstance(section, ConfigDict) else ()
        if key not in keys:
            return f"config.{name}: there is no such field{_field_hint(name, key, keys, config)}"
        section = section[key]
    return ""


def _group(name: str, config: ConfigDict) -> list[str]:
    """Return the full names of the entries of a group of fields; empty for a single field."""
    section: Any = config
    for key in name.split("."):
        section = section[key]
    return [f"config.{name}.{key}" for key in section] if isinstance(section, ConfigDict) else []


def _field_meaning(name: str, config: ConfigDict) -> str:
    """Describe the allowed values of a field; "" for a sweep's own fields, which have no rule."""
    name = name.removeprefix("config.")
    if name.startswith("base.") and "base" in config:
        name, config = name.removeprefix("base."), config.base
    field = dict(leaves(family_of(config))).get(name)
    return field.rule.meaning if field else ""


def _field_hint(name: str, key: str, keys: Collection[str], config: ConfigDict) -> str:
    if key in ENVIRONMENT or key in COMMON_NAMES:
        return field_suggestion(key, flat(config))
    return suggestion(key, keys) or field_suggestion(name, flat(config))
