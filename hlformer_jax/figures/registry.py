"""The figures by name."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hlformer_jax.figures.drawing import Drawing, Options, Subject
from hlformer_jax.plots import style


class Listing(NamedTuple):
    """A figure that runs can be drawn as.

    Attributes:
      title: its title.
      source: where it comes from.
    """

    title: str
    source: str


FIGURES: Mapping[str, Listing] = {
    "frames": Listing("Frames of a video by moment", "HLFormer, Figure 4"),
    "hyperbolic": Listing("Distances from the origin, and the Poincaré disc", "HLFormer, Figure 5"),
    "queries": Listing("Captions and clips of two near videos", "GMMFormer v2, Figure 6"),
    "heatmap": Listing("Captions over time", "GMMFormer v2, Figure 7"),
    "positioning": Listing("How far apart captions are located", "GMMFormer v2, Figure 8"),
    "windows": Listing("Windows of the blocks", "HLFormer, equation 10; GMMFormer v2, equation 13"),
    "weights": Listing(
        "Which block is asked where", "HLFormer, equation 17; GMMFormer v2, equation 3"
    ),
    "ball": Listing(
        "Action trees in the Poincaré disc", "HOVER; the projection is that of HoroPCA"
    ),
}
"""The figures, in the order of the report; each is drawn by the module of its name."""


def draw(name: str, subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draws a figure of some runs.

    Args:
      name: a key of `FIGURES`.
      subjects: the runs.
      options: what is asked for.

    Raises:
      NotApplicable: when the runs have nothing to show for it.
      UserError: when something that it needs is missing.
    """
    # One module at a time: a figure that nobody asks for costs no import.
    module = importlib.import_module(f"hlformer_jax.figures.{name}")
    drawn: Callable[[Sequence[Subject], Options], Drawing] = module.draw
    with style.applied():
        return drawn(subjects, options)
