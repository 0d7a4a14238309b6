"""Data: from a source on disk or in memory to the batches that a step takes.

    source      what a data set must offer: the protocols `Source` and `Reader`, and `DataError`
    released/   the layout in which MS-SL published its features, as a source
    planted     what the corpora with planted moments share
    synthetic   a small corpus with planted moments, made in memory, as a source
    taught      the same corpus with a planted teacher
    extracted   features of one's own videos, as a source
    trees/      moments composed into trees of actions: their rule, their nodes, their batches
    moments     the command that converts annotated moments
    prepared/   any source → array_record, written once and checked on the way; read by index
    transforms  pooling, sampling and normalisation of one video
    spans       where the moments of captions lie in their videos, for evaluation
    split       the videos of one split, transformed and kept in memory
    dataset     `open_data`: the source that a configuration asks for, prepared, as three splits
    schedule    which videos each step sees, a function of (seed, step)
    packing     the features of a chunk of steps, packed for the devices
    packed      the batch that a step gathers from packed features
    feed        `VideoFeed`: a whole split on the devices, or the chunks just ahead
    examples    `ExampleFeed`: examples that all fit on the devices, of any family
    simulated   videos without a data set, to time the work with
    memory      refuses what no memory holds

Adding a data set
-----------------
A data set is a class with the methods of `source.Source`, and one with those of `source.Reader`;
where opening it costs nothing, one class can be both. Features are what an extractor gave, float32,
a row for each frame and for each word: pooling and normalisation come later. The preparation checks
the splits, the shapes and the values, and `open_data` gives back three splits:

>>> import contextlib
>>> import numpy as np
>>> from hlformer_jax.config import default
>>> from hlformer_jax.data.dataset import open_data
>>> from hlformer_jax.data.source import Caption, Reader, Source, digest
>>> class Toy(Source, Reader):
...     name, feature, visual_dim, text_dim = "toy", "random", 6, 4
...     splits = {
...         split: {f"{split}_{k}": [Caption(f"{split}_{k}#0", "a toy")] for k in range(3)}
...         for split in ("train", "val", "test")
...     }
...     def fingerprint(self):
...         return digest(self.name, "version 1")
...     def open(self):
...         return contextlib.nullcontext(self)
...     def num_frames(self, video):
...         return 5
...     def num_words(self, caption_id):
...         return 2
...     def read_frames(self, video):
...         return np.random.default_rng(len(video)).normal(size=(5, 6)).astype(np.float32)
...     def read_words(self, caption_id):
...         return np.ones((2, 4), np.float32)
>>> config = default()
>>> config.data.update(data_dir=folder, visual_dim=6, text_dim=4)
>>> train, val, test, fingerprint = open_data(config, Toy())
>>> train.video_ids
('train_0', 'train_1', 'train_2')
>>> train[0].frames.shape, train[0].words[0].shape
((5, 6), (2, 4))

A data set with a teacher has a `teacher_dim` besides, and its reader `read_teacher`: the protocols
`source.TaughtSource` and `source.TaughtReader`.

For the commands to find it, list it in `dataset.SOURCES` by the name of its collection, with what
makes it from `config.data` (`manual_dir` says where files lie, `feature` which features are meant):

>>> from hlformer_jax.data.dataset import SOURCES
>>> SOURCES["toy"] = lambda data: Toy()
>>> config.data.collection = "toy"
>>> open_data(config).fingerprint == fingerprint
True
"""
