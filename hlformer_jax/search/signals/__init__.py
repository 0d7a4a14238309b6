"""Signals of a search: the ways in which a video can match a query, and their registry."""

from collections.abc import Callable

from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.search.index import Index
from hlformer_jax.search.signals.protocol import Signal
from hlformer_jax.search.signals.transcript.signal import TranscriptSignal
from hlformer_jax.search.signals.visual import VisualSignal

SIGNALS: dict[str, type[Signal]] = {
    VisualSignal.name: VisualSignal,
    TranscriptSignal.name: TranscriptSignal,
}
"""All signals by name, in order of precedence.

A result has its score from the first signal of the query, and its moments from the first signal
that matches it.
"""


def update_all(
    index: Index,
    encoder: Encoder,
    report: Callable[[str], None],
    pulse: Callable[[], None] = lambda: None,
) -> None:
    """Update the stored data of all signals for new and changed videos; see `Signal.update`."""
    for signal in SIGNALS.values():
        signal.update(index, encoder, report, pulse)
