"""What the command lines share: a wrong input is one line on standard error and exit status 1."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags


def fail(message: str) -> int:
    """Says what is wrong; returns the exit status."""
    print(f"error: {message}", file=sys.stderr)
    return 1


def parse(argv: Sequence[str]) -> list[str]:
    """Parses flags; a wrong one is one line, not a traceback."""
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(fail(f"{last_line(error)} (--helpshort lists the options)"))
    except (AttributeError, KeyError) as error:
        options = [option for option in argv[1:] if option.startswith("--config.")]
        sys.exit(
            fail(
                f"unknown configuration field {last_line(error)} in {' '.join(options)}:"
                " hlformer_jax/config.py lists the fields"
            )
        )
    except (ImportError, SyntaxError, OSError) as error:
        sys.exit(fail(f"configuration file: {last_line(error)}"))


def default_workdir() -> str:
    """The directory runs/NAME, NAME that of the configuration file and what follows its colon."""
    name = getattr(flags.FLAGS["config"], "config_filename")  # noqa: B009 - not in absl's types
    path, _, variant = name.partition(":")
    return os.path.join("runs", "-".join(filter(None, (Path(path).stem, variant))))


def last_line(error: Exception) -> str:
    """The last line of a message; those before it are a traceback or a context."""
    return str(error).strip().splitlines()[-1].strip().strip('"')
