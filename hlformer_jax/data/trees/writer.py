"""Writes the synthetic corpus of trees as released files with moments, and what was planted."""

import json
from pathlib import Path

from hlformer_jax.data.released.writer import write_layout
from hlformer_jax.data.trees import files
from hlformer_jax.data.trees.sources import MomentLayout, MomentSource
from hlformer_jax.data.trees.synthetic import SyntheticTrees, SyntheticTreesReader, TreeCorpus


def write_corpus(directory: str | Path, corpus: TreeCorpus | None = None) -> MomentSource:
    """Writes a corpus, or finds it written.

    Args:
      directory: the manual_dir; the corpus goes into ``synthetic_trees/`` below it, complete or not
        at all. Beside the files of moments, ``trees.json`` has the true tree of every video of
        every split (`synthetic.planted_tree`), and ``meta.json`` the fields of `corpus`.
      corpus: what it is made of; None for the defaults.

    Returns:
      The source of what was written, of the collection synthetic_trees, with feature planted.

    Raises:
      FileExistsError: if another corpus, or something else, is there.
    """
    corpus = corpus or TreeCorpus()
    source = SyntheticTrees(corpus)
    widths = source.visual_dim, source.text_dim
    layout = MomentLayout(Path(directory).expanduser(), source.name, source.feature, *widths)
    write_layout(layout, corpus, source.open, _write_moments)
    return MomentSource(layout)


def _write_moments(layout: MomentLayout, reader: SyntheticTreesReader) -> None:
    for split, videos in reader.videos.items():
        files.write_moments(layout.captions(split), videos)
    (layout.root / "trees.json").write_text(json.dumps(reader.planted), encoding="utf-8")
