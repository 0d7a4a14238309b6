"""Retrieval: scores, ranks and recalls of encoded videos.

    scoring      what a family of models brings to score its videos: the protocol `Scorer`
    similarity   the scorer of HLFormer and its ancestors: the best position of each branch
    guided       the scorer of MS-SL
    branchwise   the scorer of DL-DKD
    scorers      the scorer of a configuration's model
    vectors      unit vectors in float32, bfloat16 or int8
    corpus       encoded videos on the devices, and a search in them
    ranking      ranks, recalls, SumR
    evaluator    encodes a split once and ranks every caption against every video
    nodes        ranks among nodes of action trees
    hierarchy    what their embeddings say of the hierarchy and of the order in time
    node_evaluator    encodes the nodes of a split once and ranks each against all others
    over_time    scores of a video's frames, by those of the positions that they were pooled into
    moments      moments of a video, by the scores of its frames
    localisation    how well first moments agree with annotated ones
    baseline     a mean-pooled linear baseline
    results      metrics of a split, and their table

A corpus keeps a vector for every position of every video, sharded where there are several devices.
A video of ActivityNet's sizes takes 252, 126 and 64 kB in float32, bfloat16 and int8; on the
synthetic corpus (`configs/synthetic.py`) smaller dtypes change R@1 by 0.5 at most.

```python
import jax

from hlformer_jax.models import VideoEncoding
from hlformer_jax.retrieval import corpus

clips = jax.random.normal(jax.random.key(0), (100, 32, 64))  # of 100 videos, by models.encode_video
frames = jax.random.normal(jax.random.key(1), (100, 128, 64))
library = corpus.build(VideoEncoding(clips, frames), dtype="int8")
result = corpus.search(library, frames[:3, 40], k=5)  # queries, by models.encode_query
print(result.videos[:, 0], result.positions["frames"][:, 0], result.scores.shape)
```
"""
