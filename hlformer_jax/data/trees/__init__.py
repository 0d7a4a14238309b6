"""Trees of actions: moments of a video composed into nodes, each a span and a text.

    moment       a video's moments
    tree         nodes, and the items that a model is trained on
    rule         moments → tree, as the published trees were made
    text         the text of a composed action
    annotations  the published files of moments, told apart by their content
    files        {split}.moments.jsonl and {split}.trees.jsonl, read strictly
    lines        what strict reading of text and JSON means
    pool         all nodes of a split, numbered through, and how they are related
    nodes        which frames and words a node reads

`python -m hlformer_jax.data.moments` converts annotations.
"""
