"""The models of the papers, and the functions that all models share.

    two_branch    shared parts: query encoder, branches, options; GMMFormer and GMMFormer v2
    hlformer, ms_sl, dl_dkd, clip4clip    the other models of partially relevant video retrieval
    hover         HOVER, another family of models: nodes of action trees in hyperbolic space

A model of partially relevant video retrieval is a Linen module with the methods `encode_query` and
`encode_video`, and `lift` if it has a hyperbolic lift. `build` returns the module with its
hyperparameters as a pytree. The functions here initialise the parameters of a model, encode with
it, describe it and count its cost. docs/training.md shows how to add a model.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax.config import check_values
from hlformer_jax.models import two_branch
from hlformer_jax.models.clip4clip import CLIP4ClipMeanP, CLIP4ClipSeqTransf
from hlformer_jax.models.dl_dkd import DLDKD
from hlformer_jax.models.hlformer import HLFormer, Lifted
from hlformer_jax.models.ms_sl import MSSL
from hlformer_jax.models.two_branch import (
    GMMFormer,
    GMMFormerV2,
    Hyperparameters,
    TwoBranch,
    VideoEncoding,
    block_widths,
)
from hlformer_jax.ops.arguments import auto_sharded
from hlformer_jax.ops.dropout import derive_key, part_of_batch
from hlformer_jax.pytrees import STATIC, register_dataclass
from hlformer_jax.runtime import compiler
from hlformer_jax.typing import Array, Batch, Captions, Videos

__all__ = [
    "MODELS", "Cost", "Model", "TwoBranch", "VideoEncoding", "build", "cost", "describe",
    "encode_query", "encode_video", "init_params", "lift", "meaning", "project", "zero_batch",
]  # fmt: skip

MODELS: Mapping[str, type[TwoBranch]] = {
    "hlformer": HLFormer,
    "gmmformer_v2": GMMFormerV2,
    "gmmformer": GMMFormer,
    "ms_sl": MSSL,
    "dl_dkd": DLDKD,
    "clip4clip_meanp": CLIP4ClipMeanP,
    "clip4clip_seqtransf": CLIP4ClipSeqTransf,
}
"""The models of partially relevant retrieval by `config.model.name`."""

NOT_OF_THE_MODEL = ("input_dropout", "dropout", "frame_weight", "clip_weight")
"""Fields of `config.model` that may differ between training and evaluation."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Model:
    """A model as an argument of compiled programs.

    Attributes:
      module: the Linen module, a constant of the programs.
      hyperparameters: arrays, inputs of the programs.
      precision: precision of the module's matrix products, see `compiler.precision`.
    """

    module: TwoBranch = dataclasses.field(metadata=STATIC)
    hyperparameters: Hyperparameters
    precision: str | None = dataclasses.field(metadata=STATIC, default=None)

    def apply(
        self, params: Any, *inputs: Any, method: str | Callable[..., Any], **options: Any
    ) -> Any:
        """Call a method of the module.

        Args:
          params: parameters of the model.
          *inputs: positional arguments of the method.
          method: the method or its name.
          **options: other arguments of `flax.linen.Module.apply`.
        """
        # JAX does not vmap a function with a custom gradient over NumPy constants.
        params = jax.tree.map(jnp.asarray, params)
        with jax.default_matmul_precision(self.precision):
            return self.module.apply({"params": params}, *inputs, method=method, **options)


def build(config: ConfigDict) -> Model:
    """Return the model of a configuration.

    Raises:
      ConfigError: if a value of `config.model` is not allowed.
    """
    check_values(config, "model.")
    module = MODELS[config.model.name].from_config(config)
    return Model(module, two_branch.hyperparameters(config), compiler.precision(config))


def zero_batch(config: ConfigDict, videos: int = 1, captions: int = 1) -> Batch:
    """Return a batch of zeros without padding, to initialise or compile with.

    Args:
      config: the configuration, for the sizes.
      videos: number of videos.
      captions: number of captions, all of the first video.
    """
    data = config.data
    return Batch(
        Videos(
            jnp.zeros((videos, data.max_clips, data.visual_dim)),
            jnp.zeros((videos, data.max_frames, data.visual_dim)),
            jnp.ones((videos, data.max_frames), bool),
            jnp.ones(videos, bool),
        ),
        Captions(
            jnp.zeros((captions, data.max_words, data.text_dim)),
            jnp.ones((captions, data.max_words), bool),
            jnp.zeros(captions, jnp.int32),
            jnp.ones(captions, bool),
        ),
    )


def init_params(model: Model, config: ConfigDict) -> Any:
    """Return initial parameters, which depend on the model, `config.seed` and JAX's precision.

    They are float32, or with JAX_ENABLE_X64 float64 and drawn from other random numbers.
    """
    key = derive_key(config.seed, "params")
    return project(model, _draw_params(model, key, zero_batch(config)))


@jax.jit
def _draw_params(model: Model, key: jax.Array, batch: Batch) -> Any:
    return model.module.init(key, *batch, model.hyperparameters)["params"]


def project(model: Model, params: Any) -> Any:
    """Clamp scalar parameters to the bounds that the model declares.

    Training calls it after every step; the released code clamps before every forward pass. Learned
    curvatures stay within a factor of ten of their initial value. The logarithms of the scales
    before the exponential maps (`*_alpha`) stay at most 0.

    Args:
      model: a model of `build`.
      params: parameters of the model.
    """
    bounds = model.module.bounds

    def clamp(path: Any, value: Array) -> Array:
        name = path[-1].key
        return jnp.clip(value, *bounds[name]) if name in bounds else value

    return jax.tree_util.tree_map_with_path(clamp, params)


def encode_query(
    model: Model, params: Any, captions: Captions, dropout_key: Array | None = None
) -> Float[Array, "Q H"]:
    """Return sentence embeddings, float32 at least.

    Args:
      model: a model of `build`.
      params: parameters of the model.
      captions: a batch of captions.
      dropout_key: random key of the dropout; None switches it off.
    """
    inputs = captions, dropout_key is not None
    encoded: Array = model.apply(params, *inputs, method="encode_query", rngs=_rngs(dropout_key))
    return encoded


def encode_video(
    model: Model,
    params: Any,
    videos: Videos,
    dropout_key: Array | None = None,
    parts: int = 1,
) -> Any:
    """Encode videos at both granularities.

    Args:
      model: a model of `build`.
      params: parameters of the model.
      videos: a batch of videos.
      dropout_key: random key of the dropout; None switches it off.
      parts: number of parts of equal size into which the batch is split. The parts are encoded one
        after another, and again for the gradient, which takes less memory and more arithmetic.
        Results differ only by rounding: a video has the same dropout mask as in the whole batch.

    Returns:
      The encoded videos, float32 at least: a `VideoEncoding`, or the model's own type.

    Raises:
      ValueError: if the videos cannot be divided into equal parts.
    """
    encode = auto_sharded(functools.partial(_encode_video, parts=parts), videos.mask)
    return encode(model, params, videos, dropout_key)


def _encode_video(
    model: Model, params: Any, videos: Videos, dropout_key: Array | None, parts: int
) -> Any:
    def encode(videos: Videos, dropout_key: Array | None) -> Any:
        inputs = videos, model.hyperparameters, dropout_key is not None
        return model.apply(params, *inputs, method="encode_video", rngs=_rngs(dropout_key))

    if parts == 1:
        return encode(videos, dropout_key)
    if len(videos.mask) % parts:
        raise ValueError(f"cannot split {len(videos.mask)} videos into {parts} parts of equal size")

    # In a loop XLA does not merge the second encoding with the first; `prevent_cse` is not needed.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def encode_part(index: Array, part: Videos) -> Any:
        with part_of_batch(index, parts):
            return encode(part, dropout_key)

    # Part p has videos p, p + parts, …, so that each device has its share of every part.
    def split(x: Array) -> Array:
        return jnp.swapaxes(x.reshape(-1, parts, *x.shape[1:]), 0, 1)

    def join(x: Array) -> Array:
        return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])

    indexed = jnp.arange(parts, dtype=jnp.uint32), jax.tree.map(split, videos)
    return jax.tree.map(join, jax.lax.map(lambda part: encode_part(*part), indexed))


def lift(model: Model, params: Any, videos: VideoEncoding, queries: Float[Array, "Q H"]) -> Lifted:
    """Lift encoded videos and sentences to points of a hyperboloid, for the partial order loss.

    Args:
      model: a model of `build` with a lift.
      params: parameters of the model.
      videos: videos from `encode_video`.
      queries: sentence embeddings from `encode_query`.
    """
    lifted: Lifted = model.apply(params, videos, queries, method="lift")
    return lifted


def _rngs(dropout_key: Array | None) -> dict[str, Array] | None:
    return None if dropout_key is None else {"dropout": dropout_key}


def describe(
    config: ConfigDict,
    free: Sequence[str] = NOT_OF_THE_MODEL,
    data: Sequence[str] = ("visual_dim", "text_dim", "max_frames", "max_clips", "max_words"),
) -> dict[str, Any]:
    """Return the fields that must agree between a checkpoint and its evaluation.

    Args:
      config: the configuration.
      free: fields of `config.model` that may differ.
      data: fields of `config.data` that must agree.

    Returns:
      Values as JSON has them, by names such as "model.hidden_size".
    """
    fields = {f"model.{name}": x for name, x in config.model.items() if name not in free}
    fields |= {f"data.{name}": config.data[name] for name in data}
    return json.loads(json.dumps(fields))


def meaning(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `describe` in a form that is equal for equal models.

    Widths are listed for each block, and `lorentz_dim` is None without Lorentz blocks.
    """
    meaning = dict(fields)
    for geometry in ("euclidean", "lorentz"):
        blocks, widths = fields[f"model.{geometry}_blocks"], fields[f"model.{geometry}_widths"]
        meaning[f"model.{geometry}_widths"] = list(block_widths(widths, blocks))
    if not fields["model.lorentz_blocks"]:
        meaning["model.lorentz_dim"] = None  # not read without blocks
    return meaning


class Cost(NamedTuple):
    """Costs of a model.

    Attributes:
      parameters: number of parameters.
      flops_video: floating-point operations to encode a video; NaN if they cannot be counted.
      flops_caption: floating-point operations to encode a caption; NaN if they cannot be counted.
    """

    parameters: int
    flops_video: float
    flops_caption: float


_counted_flops: dict[Hashable, float] = {}


def cost(config: ConfigDict) -> Cost:
    """Count the parameters of a model, and its operations by the compiler, without running it."""
    model = build(config)
    params, batch = jax.eval_shape(lambda: (init_params(model, config), zero_batch(config)))

    def flops(function: Any, inputs: Any) -> float:
        shapes = [(x.shape, x.dtype) for x in jax.tree.leaves((model, params, inputs))]
        key = function, jax.tree.structure(model), tuple(shapes)
        if key not in _counted_flops:
            call = lambda params, x: function(model, params, x)
            _counted_flops[key] = compiler.count_flops(call, params, inputs)
        return _counted_flops[key]

    return Cost(
        sum(math.prod(x.shape) for x in jax.tree.leaves(params)),
        flops(encode_video, batch.videos),
        flops(encode_query, batch.captions),
    )
