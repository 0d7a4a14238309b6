"""The scorer of a model."""

import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.models import Model
from hlformer_jax.retrieval.branchwise import BranchwiseSimilarity
from hlformer_jax.retrieval.guided import GuidedSimilarity
from hlformer_jax.retrieval.scoring import TrainingScorer
from hlformer_jax.retrieval.similarity import MaximumSimilarity


def build(config: ConfigDict, model: Model) -> TrainingScorer:
    """The scorer of a model, with the branch weights of a configuration.

    Args:
      config: the whole configuration.
      model: the model of the configuration.
    """
    fields, module = config.model, model.module
    both = fields.gaze and fields.glance
    # A single branch is the whole score.
    weights = (fields.clip_weight, fields.frame_weight) if both else (1.0, 1.0)
    values = np.asarray(weights, np.float32)
    if module.query_per_branch:
        return BranchwiseSimilarity(values, parts=2 if both else 1)
    kind = GuidedSimilarity if both and module.guides_frames else MaximumSimilarity
    return kind(values)
