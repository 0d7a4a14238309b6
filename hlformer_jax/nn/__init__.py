"""Linen modules that models are made of; they own parameters and call `ops`.

    layers       projection, position embedding, dropout, feed-forward network
    blocks       attention blocks of both geometries, and banks of K windowed ones over an input
    fusion       the outputs of a bank become one sequence; pooling
    hyperbolic   layers of hyperbolic space for other models, in the Lorentz model and in the ball

Options are frozen dataclasses: `BlockOptions`, `LorentzOptions`, `BankOptions`.
"""

from hlformer_jax import lazy

__getattr__, __dir__, __all__ = lazy.namespace(
    __name__,
    {
        "hyperbolic": "Attention Concatenate Embedding LayerNorm Linear MLR Residual"
        " attention concatenate embed layer_norm linear mlr residual",
        "blocks": "BankOptions BlockOptions EuclideanAttention EuclideanBlock GaussianBank"
        " LorentzAttention LorentzBlock LorentzLinear LorentzOptions SingleQueryAttention Windows"
        " make_windows",
        "fusion": "AttentionPooling Concatenation Fusion FusionInputs Mean MeanGuided",
        "layers": "Dropout FeedForward InputProjection PositionEmbedding",
    },
)
