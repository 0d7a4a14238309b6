"""Trees of actions: moments of a video composed into nodes, each a span and a text.

    moment       a video's moments
    tree         nodes, and the items that a model is trained on
    rule         moments → tree, as the published trees were made
    text         the text of a composed action
    annotations  the published files of moments, told apart by their content
    files        {split}.moments.jsonl and {split}.trees.jsonl, read strictly
    lines        what strict reading of text and JSON means
    sources      released features with moments, and features of one's own, as sources
    synthetic    a small corpus of planted trees, made in memory, as a source
    writer       the same as released files with moments, and the planted truths
    pool         all nodes of a split, numbered through, and how they are related
    nodes        which frames and words a node reads
    dataset      `open_trees`: the trees of a configuration, and their features
    packed       nodes gathered from packed features
    feed         `SubtreeFeed`, training items; `NodeFeed`, the nodes that an evaluation encodes

`python -m hlformer_jax.data.moments` converts annotations. Frames and words are prepared as any
source is (`data.prepared`), the moments as captions; trees are built when they are opened, so that
another form of them needs no other preparation.
"""
