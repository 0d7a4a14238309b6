"""Retrieval: scores, ranks and recalls of encoded videos.

    scoring        how the positions of a video make its score: the scorer of each model
    corpus         encoded videos on the devices, and a search in them
    ranking        ranks, recalls, SumR, and the table of results
    evaluation     encodes a split once and ranks every caption against every video; the baseline
    hierarchy      the same of the nodes of action trees, and metrics of their hierarchy (HOVER)
    ensemble       a split ranked by the scores of several runs together
    moments        moments of a video by the scores of its frames, against annotated ones
    segments       intervals of a video by wavelets and a graph, without a query (TF-PRVR)

docs/training.md has an example.
"""

from hlformer_jax import lazy

__getattr__, __dir__, __all__ = lazy.namespace(
    __name__,
    {
        "ranking": "mean_reciprocal_rank metrics rank_among ranks recall_at_k sum_recall",
        "scoring": "",
        "corpus": "",
        "evaluation": "",
        "hierarchy": "",
        "ensemble": "",
        "moments": "",
        "segments": "",
    },
)
