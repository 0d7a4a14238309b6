"""Linen modules for models; they own parameters and call the functions of `ops`.

    layers       projection, position embedding, dropout, feed-forward network
    blocks       attention blocks of both geometries; banks of K windowed blocks over one input;
                 the fusion of a bank's outputs into one sequence; pooling
    hyperbolic   layers of hyperbolic space for any network, in the Lorentz model and in the ball
    activations  activations of points and of tangent vectors of hyperbolic space
    batch_statistics  batch norm of points of hyperbolic space

Options are frozen dataclasses: `BlockOptions`, `LorentzOptions`, `BankOptions`.
"""

from hlformer_jax import lazy

__getattr__, __dir__, __all__ = lazy.namespace(
    __name__,
    {
        "hyperbolic": "Attention Concatenate Curvature Embedding LayerNorm Linear MLR Residual"
        " attention concatenate embed layer_norm linear mlr residual",
        "activations": "Activation activate activate_tangent",
        "batch_statistics": "BatchNorm batch_moments batch_norm",
        "blocks": "AttentionPooling BankOptions BlockOptions BlockWeights Concatenation"
        " DynamicWeights EuclideanAttention EuclideanBlock Fusion FusionInputs GaussianBank"
        " LorentzAttention LorentzBlock LorentzLinear LorentzOptions Mean MeanGuided"
        " SingleQueryAttention TemporalConsolidation Windows make_windows",
        "layers": "Dropout FeedForward InputProjection PositionEmbedding",
    },
)
