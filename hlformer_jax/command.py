"""What the command lines share: a wrong input is one line on standard error and exit status 1."""

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags


def fail(message: str) -> int:
    """Says what is wrong; returns the exit status."""
    print(f"error: {message}", file=sys.stderr)
    return 1


def interrupted() -> int:
    """Says that Ctrl-C ended the program at once; returns the exit status."""
    print("interrupted; the same command goes on from the newest checkpoint", file=sys.stderr)
    return 128 + signal.SIGINT


def parse(argv: Sequence[str]) -> list[str]:
    """Parses flags; a wrong one is one line, not a traceback."""
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(fail(f"{last_line(error)} (--helpshort lists the options)"))
    except (AttributeError, KeyError) as error:
        sys.exit(fail(_unknown_field(error, argv)))
    except (ImportError, SyntaxError, OSError) as error:
        sys.exit(fail(f"configuration file: {last_line(error)}"))


def _unknown_field(error: Exception, argv: Sequence[str]) -> str:
    cause: Any = error
    while cause.args and isinstance(cause.args[0], Exception):
        cause = cause.args[0]
    text = str(cause.args[0] if cause.args else cause).partition(" Other fields present: ")[0]
    reason = text.strip().splitlines()[-1]
    frames = traceback.extract_tb(error.__traceback__)
    if lines := [frame for frame in frames if _is_given(frame, argv)]:
        return f"{lines[-1].filename}:{lines[-1].lineno}: {reason}"
    options = [option for option in argv[1:] if option.startswith("--config.")]
    if not options:
        return f"configuration file: {reason}"
    fields = "hlformer_jax/config.py lists the fields; those of a sweep's runs are config.base.…"
    return f"unknown configuration field in {' '.join(options)}: {reason} ({fields})"


def _is_given(frame: traceback.FrameSummary, argv: Sequence[str]) -> bool:
    """Whether a frame is of the configuration file of the command line."""
    files = [option.partition("=")[2] for option in argv if option.startswith("--config=")]
    return any(
        Path(file.partition(":")[0]).resolve() == Path(frame.filename).resolve() for file in files
    )


def default_workdir() -> str:
    """The directory runs/NAME, NAME that of the configuration file and what follows its colon."""
    name = getattr(flags.FLAGS["config"], "config_filename")  # noqa: B009 - not in absl's types
    path, _, variant = name.partition(":")
    return os.path.join("runs", "-".join(filter(None, (Path(path).stem, variant))))


def last_line(error: Exception) -> str:
    """The last line of a message; those before it are a traceback or a context."""
    return str(error).strip().splitlines()[-1].strip().strip('"')
