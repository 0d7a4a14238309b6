"""Retrieval: scores, ranks and recalls of encoded videos.

    scoring        the scorer of each model: the score of a video from its positions
    corpus         encoded videos on the devices, and a search in them
    ranking        ranks, recalls, SumR, and the table of results
    evaluation     encodes a split once and ranks every caption against every video; baselines
    hierarchy      evaluation of the nodes of action trees and of their hierarchy (HOVER)
    ensemble       ranks a split by the mean of the scores of several runs
    moments        moments of a video from the scores of its frames; agreement with annotations
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
