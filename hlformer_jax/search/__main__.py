"""Command line: `python -m hlformer_jax.search COMMAND …`; --help lists the commands."""

import argparse
import codecs
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from hlformer_jax.command import fail
from hlformer_jax.errors import UserError
from hlformer_jax.search.commands import COMMANDS


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with status 1."""
        sys.exit(fail(f"{message} ({self.prog} --help lists the options)"))


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = _Parser("hlformer_jax.search", description="Search in one's own videos by sentences.")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        about = command.run.__doc__
        own = commands.add_parser(name, help=about, description=about)
        for option, settings in command.options:
            own.add_argument(option, **settings)
    return whole


def _legible(error: UnicodeError) -> tuple[str | bytes, int]:
    """U+FFFD for each byte of a name that is no text; what else a terminal lacks, escaped."""
    if isinstance(error, UnicodeEncodeError) and error.encoding.startswith("utf"):
        return "\ufffd" * (error.end - error.start), error.end
    return codecs.backslashreplace_errors(error)


codecs.register_error("hlformer.legible", _legible)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; a wrong input ends it with one line and exit status 1."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names of files may be no text
            stream.reconfigure(errors="hlformer.legible")
    options = parser().parse_args(argv)
    try:
        if COMMANDS[options.command].compiles:
            from hlformer_jax import parallel

            parallel.keep_programs()
        COMMANDS[options.command].run(options)
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        print("interrupted: run the same command again to continue", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of a pipe, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (UserError, OSError) as error:
        return fail(" ".join(str(error).split()))


if __name__ == "__main__":
    sys.exit(main())
