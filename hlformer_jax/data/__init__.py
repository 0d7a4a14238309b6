"""Data: from a source on disk or in memory to the batches of a training step.

    sources/protocol    the protocols `Source` and `Reader`, and `DataError`
    sources/released    the layouts in which features were published, as sources
    sources/synthetic   small corpora with planted moments, as a source and as released files
    sources/extracted   features of a user's own videos, as a source
    annotations         caption lists, moments and their times, read strictly
    prepared            any source → array_record files, checked and written once
    transforms          pooling, sampling and normalisation of one video
    split               the videos of one split, transformed and kept in memory
    dataset             `open_data`, `open_trees`: the three splits of a configuration's data set
    feed                the order of a run's steps, and batches gathered on the devices
    tree_feed           the nodes of trees for a step, gathered on the devices
    trees               trees of actions, made from moments; files of trees; all nodes of a split
    moments             the command that converts annotated moments

docs/data.md has the formats and how to add a data set, docs/hover.md the trees.
"""
