"""Signals of a search: the ways in which a video can match a query.

The order of the imports is that of `SIGNALS`: results take score and moments from the first signal.
"""

from hlformer_jax.search.signals.protocol import SIGNALS, Signal, register

from hlformer_jax.search.signals.visual import Visual  # isort: skip
from hlformer_jax.search.signals.transcript.signal import Transcript  # isort: skip

__all__ = ["SIGNALS", "Signal", "Transcript", "Visual", "register"]
