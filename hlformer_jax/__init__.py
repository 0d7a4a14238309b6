"""HLFormer in JAX: partially relevant video retrieval with hyperbolic learning.

From the bottom up:

    typing, errors, text      axis glossary; errors that a user can correct; text of messages
    config, cli               fields with their rules, files of configurations; flags and tables
    files, lazy, runtime      atomic writes; imports at first use; devices, processes, compiler
    ops                       pure functions of arrays; hyperbolic spaces, optimisers of points
    data                      sources → prepared records → batches on the devices
    nn, models                Linen modules; the models of the papers
    retrieval                 scores, ranks, a corpus to search
    losses, training          losses as pure functions; objectives, the step, the loop
    encoders, video           sentences and images → vectors; frames of videos
    search                    your own videos: an index, rankers, a page
    figures                   attention and spaces of trained models; curves of runs and sweeps
    main, sweep, torch_checkpoint    further commands

As a library, where a namespace is loaded at its first use:

    import hlformer_jax as hl

    hl.lorentz, hl.poincare, hl.cones, hl.statistics, hl.horopca    functions of hyperbolic space
    hl.manifolds, hl.optim              spaces as pytrees, optimisers of points
    hl.attention, hl.windows, hl.nn     layers
    hl.losses, hl.retrieval             losses; ranks, recalls, a corpus to search
    hl.ops                              all modules of functions of arrays
"""

import contextlib
import os
import re
import signal
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from hlformer_jax import lazy

if TYPE_CHECKING:
    from hlformer_jax import losses, nn, ops, retrieval
    from hlformer_jax.ops import (
        attention,
        cones,
        horopca,
        lorentz,
        manifolds,
        optim,
        poincare,
        statistics,
        windows,
    )

__version__ = "0.1.0"


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception; for Ctrl-C without its traceback."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _repeat_interrupt(ignored: "sys.UnraisableHookArgs") -> None:
    """Send Ctrl-C again if Python ignored its exception; print other exceptions as before.

    Python ignores exceptions in finalizers and callbacks of the garbage collector, such as JAX's.
    """
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        main = threading.main_thread().ident
        timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # the interpreter is ending, without new threads
            timer.start()
    else:
        sys.__unraisablehook__(ignored)


# A command takes a second to import its packages before it can handle Ctrl-C.
_PROGRAM = "".join(sys.orig_argv[-len(sys.argv) :][:1])
if re.fullmatch(r"hlformer_jax(\.\w+)+|hlformer-\w+", os.path.basename(_PROGRAM)):
    sys.excepthook, sys.unraisablehook = _report, _repeat_interrupt

__getattr__, __dir__, __all__ = lazy.namespace(
    __name__,
    {
        "losses": "",
        "nn": "",
        "ops": "attention cones horopca lorentz manifolds optim poincare statistics windows",
        "retrieval": "",
    },
)
