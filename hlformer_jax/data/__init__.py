"""Data: from a source on disk or in memory to the batches that a step takes.

    source          the protocols `Source` and `Reader`, and `DataError`
    annotations     caption lists, moments and their times, read strictly
    released        the layouts in which features were published, as sources
    synthetic       small corpora with planted moments, as a source and as released files
    extracted       features of one's own videos, as a source
    prepared        any source → array_record, written once and checked on the way
    transforms      pooling, sampling and normalisation of one video
    split           the videos of one split, transformed and kept in memory
    dataset         `open_data`, `open_trees`: the data set of a configuration, as three splits
    feed            the order of a run's steps, and batches gathered on the devices, of trees too
    trees           moments composed into trees of actions: the rule, files of trees, their nodes
    moments         the command that converts annotated moments

docs/data.md has the formats and how to add a data set, docs/hover.md the trees.
"""
