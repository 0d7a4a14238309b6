"""The authors' released PyTorch code, run from a checkout beside ours, so that both can be timed.

Nothing of it is in this package. `Released` imports it at run time and drives it the way its own
`main.py` does: its model, loss and optimiser, with the sizes and constants of our configuration, in
float32 whatever `config.dtype` is. On a CPU, which it was not written for, its calls of `.cuda()`
do nothing.
"""

import contextlib
import importlib
import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.errors import UserError
from hlformer_jax.typing import Batch

MODULES = (
    "Models.builder",
    "Losses.builder",
    "Opts.builder",
    "Datasets.data_provider",
    "Utils.utils",
)
"""What is used of the checkout. Its `Configs` are not: importing them creates folders in /data2."""

REQUIREMENTS = "torch geoopt easydict h5py ipdb matplotlib seaborn tqdm"
"""Packages that these modules import; the checkout's requirements.txt leaves out the first two."""

HARD_WIRED: Mapping[str, Any] = {
    "data.max_frames": 128,
    "data.max_clips": 32,
    "model.name": "hlformer",
    "model.window": "released",
    "model.lorentz_window": "released",
    "model.head_merge": "released",
    "model.fusion": "maim",
    "model.gaze": True,
    "model.glance": True,
    "loss.clip_triplet": 1.0,
    "loss.frame_triplet": 1.0,
    "loss.min_radius": 0.1,
    "optim.beta1": 0.9,
    "optim.beta2": 0.999,
    "optim.epsilon": 1e-6,
    "optim.weight_decay": 0.01,
    "optim.clip_norm": 1.0,
}
"""Fields of the configuration for which the released code has one value and no setting."""


class PeerError(UserError, ValueError):
    """The released code cannot be run; the message says why and what to do."""


class Released:
    """The released training on one device."""

    def __init__(self, checkout: Path, config: ConfigDict, device: str) -> None:
        """Builds model, loss and optimiser from a checkout, seeded with the configuration's seed.

        The device is "cpu" or "cuda".

        Raises:
          PeerError: when the configuration has no counterpart, the checkout is not one, a package
            is missing, or there is no such device.
        """
        self._settings = settings(config)
        self._modules = _load(checkout)
        self._torch = _import("torch", checkout)
        self._device = device
        if device == "cuda" and not self._torch.cuda.is_available():
            raise PeerError("torch sees no CUDA device: use device cpu, or a torch built for CUDA")
        self._modules["Utils.utils"].set_seed(config.seed)
        self._model = self._modules["Models.builder"].get_models(self._settings).to(device)
        self._loss = self._modules["Losses.builder"].get_losses(self._settings)
        # The learning rate's schedule takes the length of a loader: of one epoch of 1,000 steps.
        get_opts = self._modules["Opts.builder"].get_opts
        self._optimiser = get_opts(self._settings, self._model, range(1000))

    def convert(self, batch: Batch) -> dict[str, Any]:
        """A batch of ours as its training loader makes it, on the device.

        Its own collate function does it: no padded videos and captions, cut to the longest video
        and caption, the videos with most frames first.
        """
        if batch.videos.mask.sum() < 2 or batch.captions.mask.sum() < 2:
            raise PeerError("the released code needs two videos and two captions in a batch")
        tensor = self._torch.from_numpy
        words, mask, video, real = map(np.asarray, batch.captions)
        captions = [
            (int(video[row]), tensor(words[row][mask[row]])) for row in np.flatnonzero(real)
        ]
        clips, frames, mask, real = map(np.asarray, batch.videos)
        items = [
            (
                tensor(clips[row].copy())[None],
                tensor(frames[row][mask[row]]),
                [own for at, own in captions if at == row],
                int(row),
                (),
                "",
            )
            for row in np.flatnonzero(real)
        ]
        with self._as_released():
            collated = self._modules["Datasets.data_provider"].collate_train(items)
            moved: dict[str, Any] = self._modules["Utils.utils"].gpu(collated)
        return moved

    def step(self, batch: Mapping[str, Any]) -> float:
        """One training step as in its loop, on what `convert` returned; the loss, when all is done.

        The triplet loss takes no hard negatives, as in its first epochs.
        """
        self._model.train()
        with self._as_released():
            self._optimiser.zero_grad()
            loss = self._loss(self._model(batch), batch)
            loss.backward()
            self._optimiser.step()
        if self._device == "cuda":
            self._torch.cuda.synchronize()
        return float(loss.cpu().item())

    @contextlib.contextmanager
    def _as_released(self) -> Iterator[None]:
        """Lets it call `.cuda()` where there is no GPU, and keeps its progress bars to itself."""
        tensor, bars = self._torch.Tensor, io.StringIO()
        with contextlib.redirect_stdout(bars), contextlib.redirect_stderr(bars):
            if self._device == "cuda":
                yield
                return
            tensor.cuda = lambda self, *_, **__: self  # hides the inherited method
            try:
                yield
            finally:
                del tensor.cuda


def settings(config: ConfigDict) -> dict[str, Any]:
    """Our configuration by the names that the released code reads.

    Raises:
      PeerError: naming every field for which the released code has another value and no setting.
    """
    data, model, loss, optim = config.data, config.model, config.loss, config.optim
    blocks = max(1, model.lorentz_blocks)
    widths = (0, *(2**k for k in range(1, blocks)))
    wanted = {**HARD_WIRED}
    for geometry in ("euclidean", "lorentz"):
        wanted[f"model.{geometry}_blocks"] = blocks
        wanted[f"model.{geometry}_widths"] = widths if model[f"{geometry}_widths"] else ()
    given = {name: config[name.split(".")[0]][name.split(".")[1]] for name in wanted}
    if differing := [name for name in wanted if given[name] != wanted[name]]:
        what = ", ".join(f"config.{n} {given[n]!r} (only {wanted[n]!r})" for n in differing)
        raise PeerError(f"the released code has no counterpart of {what}")
    return {
        "visual_feat_dim": data.visual_dim,
        "q_feat_size": data.text_dim,
        "max_ctx_l": data.max_frames,
        "map_size": data.max_clips,
        "max_desc_l": data.max_words,
        "hidden_size": model.hidden_size,
        "lorentz_dim": model.lorentz_dim,
        "n_heads": model.num_heads,
        "attention_num": 2 * blocks,
        "sft_factor": model.temperature,
        "input_drop": model.input_dropout,
        "drop": model.dropout,
        "curv_init": float(model.curvature),
        "learn_curv_bool": True,
        "initializer_range": 0.02,
        "clip_scale_w": model.clip_weight,
        "frame_scale_w": model.frame_weight,
        "margin": loss.margin,
        "hard_pool_size": loss.hard_pool_size,
        "use_hard_negative": False,
        "loss_factor": [loss.clip_nce, loss.frame_nce, loss.query_diversity, loss.partial_order],
        "neg_factor": [loss.diversity_margin, loss.diversity_scale, loss.diversity_gamma],
        "lr": optim.learning_rate,
        "lr_warmup_proportion": optim.warmup,
        "wd": optim.weight_decay,
        "n_epoch": 1,
        "batchsize": config.train.batch_size,
    }


def _load(checkout: Path) -> dict[str, Any]:
    """Imports the released modules of a checkout."""
    root = checkout.expanduser().resolve() / "src"
    files = {name: root / f"{name.replace('.', '/')}.py" for name in MODULES}
    if missing := [str(path) for path in files.values() if not path.is_file()]:
        raise PeerError(
            f"{checkout} is no checkout of the released HLFormer: there is no {', '.join(missing)}"
        )
    _import("torch", checkout)
    if str(root) not in sys.path:  # where its own main.py has it; its workers may need it too
        sys.path.insert(0, str(root))
    modules = {name: _import(name, checkout) for name in MODULES}
    for name, path in files.items():
        if Path(modules[name].__file__).resolve() != path:
            raise PeerError(f"{name} is already loaded from {modules[name].__file__}: start anew")
    return modules


def _import(name: str, checkout: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # deprecations inside of its dependencies
            return importlib.import_module(name)
    except ImportError as error:
        raise PeerError(
            f"{checkout} cannot be imported ({error}): pip install {REQUIREMENTS}"
        ) from None
