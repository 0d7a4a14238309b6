"""Every figure has its module, and is drawn in the style of all."""

import importlib

from hlformer_jax.figures import registry
from hlformer_jax.plots import style


def test_every_figure_has_a_module_that_draws_it():
    for name, kind in registry.FIGURES.items():
        module = importlib.import_module(f"hlformer_jax.figures.{name}")
        assert callable(module.draw) and kind.title and kind.source


def test_figures_are_drawn_in_the_style(subject, options):
    drawn = registry.draw("windows", [subject], options)
    assert not drawn.figure.axes[0].spines["top"].get_visible()
    assert drawn.figure.axes[0].xaxis.label.get_fontsize() == style.STYLE["font.size"]
