"""The models of the papers, one file each, and what every one can do.

    registry      the models by name, and the one that a configuration asks for
    options       the fields of `config.model` as options of a model, checked
    two_branch    what the models share
    hlformer, gmmformer_v2, gmmformer, ms_sl, dl_dkd    the models
    encode        the methods of a model as pure functions of parameters and arrays
    initialise    initial parameters
    constraints   what holds for parameters after every step
    description   what a checkpoint says of its model
    cost          parameters and operations of a model
    hover         the model of another family: nodes of action trees in hyperbolic space

A model is a Linen module with the methods `encode_query` and `encode_video`, and `lift` if it has a
hyperbolic lift; `build` gives it with its hyperparameters, as a pytree.

Every part plugs into every model; a combination that makes no sense is refused with the reason.

Fields of `config.model`:

    name           hlformer, gmmformer_v2, gmmformer, ms_sl, dl_dkd (start from the model's file)
    fusion         maim (mean-guided), consolidation (temporal consolidation), dynamic, weighted,
                   mean, concat
    blocks         euclidean_blocks, lorentz_blocks, euclidean_widths, lorentz_widths
    windows        window: released, printed, boxcar, bartlett, none;
                   lorentz_window: released, corrected
    curvature      block_curvature: fixed, shared, block (learned from block_curvature_start)
    branches       gaze, glance; video_level: frames pooled to one vector a video

and of `config.loss`: a weight for each term, 0 leaves it out; `optimal_matching`, `query_diversity`
with `diversity_form` and `diversity_gamma`; `distillation`, of dl_dkd and data with a teacher.

What differs from the paper of HLFormer. The default is what the released code computes; where the
printed equations differ, they are options:

    Gaussian window      released: normalised positions, row maximum 1; model.window = "printed":
                         eq. 10
    Lorentz attention    released: the window multiplies logits that are <= 0, which favours far
                         positions; model.lorentz_window = "corrected": its logarithm is added
    heads                released: concatenated, off the hyperboloid; model.head_merge =
                         "hyperboloid"
    query diversity      released: with a focal factor; loss.diversity_gamma = 0: eq. 32
    curvature            released: 1 in the Lorentz blocks; model.block_curvature = "shared",
                         "block": learned

Deliberately better than the released code: values and gradients are finite at the origin, at
coincident and collinear points; the exact geometry is used where the released one adds 1e-8 (its
angles are off by up to that over their sine, 1.4e-4 for a saturated aperture); a caption is encoded
once for all losses, with one dropout mask; ties get the middle rank. Ablations of the paper's Table
2 and Figures 3 and 6 are fields of `config.model` and `config.loss`.

Adding a model takes a file here and a configuration; data, losses, trainer, evaluation, search and
sweeps serve it as it is. What GMMFormer v2 took, from HLFormer:

1. `models/gmmformer_v2.py`: a subclass of `TwoBranch` (query encoder, clip and frame branch), which
   here adds nothing; `HLFormer` adds the lift, `MSSL` what it makes of the encoded branches. What
   makes no sense for it is refused in its `from_config`. `registry.MODELS` has its name.
2. `nn/fusion.py`: temporal consolidation as a further fusion, for every model, in `FUSIONS`. Parts
   that others could use live in `nn/` or `ops/`, not in the model's file.
3. `losses/embeddings.py`: `optimal_matching`, a pure function; `training/prvr.py`: the term.
4. `config/`: the new fields with their meaning and rule, off by default, and what defines the
   model; `configs/gmmformer_v2.py`: the published hyper-parameters.
5. `torch_checkpoint.py`: the names of its released parameters, so that checkpoints convert.
6. `tests/golden/gmmformer_v2.npz` and a `Recording` in `tests/released.py`: the tests of parity run
   on every recording.

What DL-DKD took beyond that: a scorer whose queries have a part for each branch
(`retrieval/scoring.py`), a term (`losses/distillation.py`), and a teacher in the data
(`data/source.py`).

A model whose encodings are scored by another rule brings a `retrieval.scoring.Scorer`; one with
other batches, losses or data is a family of its own, see `training/families.py`.
"""

from hlformer_jax.models.constraints import project
from hlformer_jax.models.description import describe
from hlformer_jax.models.encode import encode_query, encode_video, lift
from hlformer_jax.models.initialise import init_params, zero_batch
from hlformer_jax.models.registry import MODELS, TITLES, Model, build
from hlformer_jax.models.two_branch import TwoBranch, VideoEncoding

__all__ = [
    "MODELS",
    "TITLES",
    "Model",
    "TwoBranch",
    "VideoEncoding",
    "build",
    "describe",
    "encode_query",
    "encode_video",
    "init_params",
    "lift",
    "project",
    "zero_batch",
]
