"""Command line: `python -m hlformer_jax.search COMMAND …`; --help lists the commands."""

import argparse
import codecs
import io
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from hlformer_jax import files, terminal
from hlformer_jax.cli import fail
from hlformer_jax.errors import QueryError, UserError, describe, is_memory_error
from hlformer_jax.lazy import optional
from hlformer_jax.search.cli.commands import COMMANDS
from hlformer_jax.search.cli.options import FIELD_FLAGS, QUIET
from hlformer_jax.text import without_passwords

STREAMS = {"stdin": os.O_RDONLY, "stdout": os.O_WRONLY, "stderr": os.O_WRONLY}
"""The standard streams in the order of their descriptors, with the flags to open them."""

MIN_ADDRESS_SPACE = 1_500_000 * 1024
"""Address space in bytes that a search needs with the smallest encoder on two cores.

With less, XLA aborts the process.
"""


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Print an error, and exit with status 1."""
        message = without_passwords(message, _values(sys.argv))
        sys.exit(fail(f"{message} ({self.prog} --help lists the options)"))


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser("hlformer-search", description="Search your own videos by sentences.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        about = command.run.__doc__
        subparser = commands.add_parser(name, help=about, description=about)
        for option, settings in (*command.options, QUIET):
            subparser.add_argument(option, **settings)
    return parser


def _values(argv: Sequence[str]) -> list[str]:
    """Return the arguments of a command line; an argument --name=VALUE is returned as VALUE."""
    return [
        argument.partition("=")[2] if argument.startswith("--") and "=" in argument else argument
        for argument in argv
    ]


def _legible(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace undecodable bytes of file names by U+FFFD, and escape unprintable characters."""
    if isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":
        return "\ufffd".encode() * (error.end - error.start), error.end  # not ASCII, so no str
    return codecs.backslashreplace_errors(error)


codecs.register_error("hlformer.legible", _legible)


def _open_closed_streams() -> set[str]:
    """Open /dev/null for the standard streams that the caller has closed; return their names.

    Otherwise the next opened file would get the descriptor of standard output, and a library's
    output would be written into that file.
    """
    closed = {name for name in STREAMS if getattr(sys, name) is None}
    for name in (name for name in STREAMS if name in closed):
        descriptor = os.open(os.devnull, STREAMS[name])
        setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))
    return closed


def _buffer_streams() -> None:
    """Buffer the output that PYTHONUNBUFFERED leaves unbuffered; each line is still sent at once.

    An unbuffered stream forgets a text that could not be written, and so the reason.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        is_of_process = stream is getattr(sys, f"__{name}__")
        if is_of_process and isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            descriptor, encoding = stream.fileno(), stream.encoding
            buffered = open(descriptor, "w", buffering=1, encoding=encoding, closefd=False)
            setattr(sys, name, buffered)


def _output_problem() -> str:
    """Return why the rest of standard output cannot be written, and discard it; "" if it can."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error.strerror or str(error)
    return ""


def _check_address_space() -> None:
    """Check that there is enough address space: with too little, XLA would end the process.

    Raises:
      MemoryError: if there is too little; the message names the limit.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < MIN_ADDRESS_SPACE:
        raise MemoryError(
            f"ulimit -v is {limit // 1024}, but must be at least {MIN_ADDRESS_SPACE // 1024}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
      argv: the arguments; by default the arguments of the process.

    Returns:
      The exit status: 0, 1 after an error that was printed in one line, or 128 plus the number of
      the signal that ended the command.
    """
    closed = _open_closed_streams()
    _buffer_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # file names may contain bytes that are not text
            stream.reconfigure(errors="hlformer.legible")
    commands = parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        optional("argcomplete", "search").autocomplete(commands)
    options = commands.parse_args(argv)
    values = _values(sys.argv if argv is None else argv)
    terminal.silence(options.quiet)
    files.discard_drafts_on_signals()
    try:
        if options.command == "mcp" and closed & {"stdin", "stdout"}:
            return fail("standard input or output is closed, but mcp needs both")
        if COMMANDS[options.command].compiles:
            _check_address_space()
            from hlformer_jax.runtime import compiler

            compiler.keep_programs()
        COMMANDS[options.command].run(options)
        sys.stdout.flush()
        if "stdout" in closed:
            return fail("standard output is closed: the results could not be printed")
        return 0
    except KeyboardInterrupt:
        continues = COMMANDS[options.command].continues
        advice = ": run the same command again to continue" if continues else ""
        print(f"interrupted{advice}", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (UserError, OSError) as error:
        if isinstance(error, OSError) and (reason := _output_problem()):
            return fail(f"standard output cannot be written ({reason}): make room or check it")
        line = error.phrased(FIELD_FLAGS) if isinstance(error, QueryError) else describe(error)
        return fail(without_passwords(" ".join(line.split()), values))
    except Exception as error:
        if not is_memory_error(error):
            raise
        line = " ".join(str(error).split())[:200]
        return fail(
            f"not enough memory{(f' ({line})' if line else '')}: free some, or raise the limit"
        )


if __name__ == "__main__":
    sys.exit(main())
