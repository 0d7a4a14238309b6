"""Training: a step, an epoch, the preparation of data, and compiling.

`Released` runs the authors' PyTorch code for comparison. This package contains none of it: its
model, loss and optimiser are imported from a checkout at run time, and used as its `main.py` uses
them, with the sizes and constants of our configuration, in float32 for any `config.dtype`. It was
not written for CPUs; there its calls of `.cuda()` do nothing.
"""

import contextlib
import importlib
import io
import itertools
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import measure
from benchmarks.measure import Floor, Options, Row, announce, clock, num_videos, summary, timed
from benchmarks.simulated import CAPTIONS_PER_VIDEO
from hlformer_jax import models
from hlformer_jax.config import default, flat
from hlformer_jax.data import prepared
from hlformer_jax.data.feed import Chunk, Schedule
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval.evaluation import Evaluator
from hlformer_jax.runtime import compiler, devices
from hlformer_jax.training import checkpoints, prvr
from hlformer_jax.training.step import (
    TrainState,
    compile_steps,
    init_state,
    list_program_fields,
    train_step,
)
from hlformer_jax.typing import Batch


class Training:
    """A compiled group of training steps on simulated features, which can be run repeatedly.

    Args:
      config: the configuration.
      videos: number of videos of an epoch.
      longest: largest number of steps of a group.
      resident: whether features stay on the devices; otherwise they are streamed.
    """

    def __init__(
        self, config: ConfigDict, videos: int, longest: int, resident: bool = True
    ) -> None:
        self.config, self.mesh = config, devices.mesh()
        captions = round(videos * CAPTIONS_PER_VIDEO)
        family = measure.simulated_family(config, self.mesh, videos, captions, resident)
        family.check_trainable()
        self.split = family.data.train
        schedule = Schedule(videos, config.train.batch_size, config.seed)
        self.feed = family.feed(schedule.groups(1, longest))
        self.steps_per_epoch = schedule.steps_per_epoch
        self._optimiser = family.optimiser(100 * self.steps_per_epoch)
        self._project = family.project
        state = init_state(self._initial_params(family), self._optimiser)
        self.state: TrainState = devices.replicate(self.mesh, state)
        loss = family.loss(self.steps_per_epoch)
        with compiler.without_garbage_collection():
            self.compiled = compile_steps(
                loss,
                self._optimiser,
                self._project,
                self.feed,
                self.state,
                config,
                list_program_fields(config),
            )

    def _initial_params(self, family: Any) -> Any:
        """Return the initial parameters; with `config.compile_fast` random ones.

        Times do not depend on the values, and compiling their initialisation takes seconds.
        """
        if not self.config.compile_fast:
            return family.init_params()
        random = np.random.default_rng(self.config.seed)
        return jax.tree.map(
            lambda x: 0.02 * random.standard_normal(x.shape, x.dtype),
            jax.eval_shape(family.init_params),
        )

    def run(self, window: Chunk) -> Any:
        """Take the steps of a chunk; return arrays that are ready when the steps are done."""
        self.state, scalars = self.compiled.steps(self.state, window)
        return scalars

    def run_epoch(self) -> Any:
        """Take the steps of all chunks; return arrays that are ready when the steps are done."""
        progress, scalars = measure.Progress("steps", self.steps_per_epoch), None
        for window in self.feed.chunks():
            scalars = self.run(window)
            progress.advance(window.num_steps)
        return scalars

    def floor(self) -> Floor:
        """Return the floor of a step, which reads and writes the state and reads the batch."""
        features, plan = self.feed.shapes()
        videos, captions = plan.videos.shape[1], plan.captions.shape[1]
        data = self.config.data
        vectors = videos * (data.max_clips + data.max_frames) * data.visual_dim
        batch = self.split.dtype.itemsize * (vectors + captions * data.max_words * data.text_dim)
        moved = 2 * devices.nbytes(self.state) + batch / self.mesh.size
        return measure.floor(self.flops(), moved, self.config.dtype)

    def flops(self) -> float:
        """Return the operations of one step on one device.

        Operations that are repeated to save memory count once.
        """
        plain = self.config.copy_and_resolve_references()
        plain.train.encode_parts = 1  # with several parts, each is encoded twice
        model = models.build(plain)
        most = int(self.split.captions_per_video.max())
        loss = prvr.build_objective(plain, model, self.steps_per_epoch, most)
        batch = jax.eval_shape(
            lambda: models.zero_batch(plain, self.feed.videos, self.feed.captions)
        )

        def step(loss: Any, state: TrainState, batch: Batch) -> Any:
            return train_step(loss, self._optimiser, self._project)(state, batch)

        return compiler.count_flops(step, loss, self.state, batch) / self.mesh.size

    def memory(self) -> dict[str, float]:
        """Return each device's memory: the compiler's plan, the peak if known, the features."""
        plan = compiler.memory_plan(self.compiled.program).get("peak", float("nan"))
        facts = {"peak GB (planned)": plan / 1e9}
        stats = jax.local_devices()[0].memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            facts["peak GB (used so far)"] = stats["peak_bytes_in_use"] / 1e9
        return facts | {"features GB": self.feed.bytes_per_device / 1e9}


def step(config: ConfigDict, options: Options, peer: "Released | None" = None) -> Iterator[Row]:
    """Measure a training step of `config.train.batch_size` videos with all their captions.

    Args:
      config: the configuration.
      options: the number of repeats.
      peer: the released code, to be measured too.
    """
    size = config.train.batch_size
    announce(f"compile a step of {size} videos")
    training = Training(config, size, 1)
    (window,) = training.feed.chunks()
    timing = timed(training.run, window, repeats=options.repeats)
    floor = training.floor()
    facts = {
        "videos/s": size / timing.median,
        "of matrix product": floor.flops / timing.median / measure.ceilings(config.dtype).flops,
        "captions": float(len(training.split.caption_video)),
        **training.memory(),
    }
    yield Row("step", timing, floor, facts)
    if peer is None:
        return
    batch = peer.convert(measure.first_batch(training.feed, window))
    released: list[float] = []
    package: list[float] = []
    for _ in range(3):  # alternate, so that other load on the machine affects both
        # One run of each is not timed: the system has to move memory from one to the other.
        clock(peer.step, batch)
        released.append(clock(peer.step, batch))
        clock(training.run, window)
        package.append(clock(training.run, window))
    yield Row("step of the released code", summary(released))
    faster = {"times as fast": float(np.median(released) / np.median(package))}
    yield Row("ours, in turn with it", summary(package), None, faster)


def epoch(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Measure an epoch of training, resident and streamed, without validation; and a checkpoint.

    With `config.compile_fast`, as in every `:debug`, an epoch has no floor, because counting its
    operations takes longer than all its steps.
    """
    videos = num_videos(config, options, "train")
    # A chunk with all steps of the epoch has equal shapes for both feeds, which share a program.
    longest = videos if config.compile_fast else config.train.log_every
    step_floor: Floor | None = None
    for resident in (True, False):
        name = "resident" if resident else "streamed"
        announce(f"compile the steps of an epoch of {videos:,} videos, {name}")
        training = Training(config, videos, longest, resident)
        announce("load the first features")
        start = time.perf_counter()
        training.feed.load()
        jax.block_until_ready(next(training.feed.chunks()).features)
        loading = time.perf_counter() - start
        announce(f"train epochs of {training.steps_per_epoch:,} steps")
        timing = timed(training.run_epoch, repeats=options.repeats)
        steps = training.steps_per_epoch
        if not config.compile_fast:
            step_floor = step_floor or training.floor()  # the same for both; it takes seconds
        facts = {"steps": float(steps), "videos/s": videos / timing.median, "load s": loading}
        floor = step_floor and Floor(*(steps * part for part in step_floor))
        yield Row(f"epoch, {name}", timing, floor, facts | training.memory())
        training.feed.close()
    with tempfile.TemporaryDirectory() as directory:
        # A run writes one after a validation, at most every `checkpoint_seconds`.
        announce("write checkpoints")
        state, numbers = training.state, itertools.count(1)
        series = checkpoints.newest(Path(directory))
        timing = timed(lambda: series.save(next(numbers), state, {}), repeats=options.repeats)
        series.close()
    yield Row("checkpoint", timing, None, {"GB": devices.nbytes(state) / 1e9})


def prepare(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Measure the preparation of released files as records, in input bytes per second."""
    with tempfile.TemporaryDirectory() as directory:
        videos = num_videos(config, options, "train", 400)
        announce(f"write {videos:,} videos in the released layout")
        collection = measure.released_files(directory, videos, config)
        paths = (collection.feature_dir / "feature.bin", collection.text_features)
        size = sum(path.stat().st_size for path in paths)
        clocks, copies = [], []
        for repeat in range(3):
            announce(f"prepare them, {repeat + 1} of 3")
            target = Path(directory) / str(repeat)
            clocks.append(clock(prepared.prepare, collection, target, config.data.storage))
            copies.append(sum(clock(shutil.copy, path, target) for path in paths))
    timing = summary(clocks)
    # All bytes that are read must be written, which takes at least as long as copying the files.
    floor = Floor(0.0, 2.0 * size, float(np.median(copies)))
    yield Row("prepare", timing, floor, {"MB": size / 1e6, "MB/s": size / 1e6 / timing.median})


def compilation(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Measure tracing and compiling of the programs of a run, without the compilation cache."""
    del options  # measured once: a second compilation in the same process would differ
    jax.config.update("jax_enable_compilation_cache", False)
    model = models.build(config)

    def evaluate() -> None:
        split = measure.simulated_split(
            config.eval.video_batch, 2 * config.eval.video_batch, config
        )
        evaluator = Evaluator(model, config, devices.mesh())
        params = devices.replicate(devices.mesh(), models.init_params(model, config))
        evaluator.evaluate(params, evaluator.feed(split))

    for name, run in (
        ("initial parameters", lambda: models.init_params(model, config)),
        ("training", lambda: Training(config, config.train.batch_size, 1)),
        ("evaluation", evaluate),
    ):
        announce(f"compile {name}")
        yield Row(name, summary([clock(run)]))


# The released code


MODULES = (
    "Models.builder",
    "Losses.builder",
    "Opts.builder",
    "Datasets.data_provider",
    "Utils.utils",
)
"""Modules that are imported from the checkout. `Configs` is not: its import makes /data2/…."""

REQUIREMENTS = "torch geoopt easydict h5py ipdb matplotlib seaborn tqdm"
"""Packages that these modules import; the checkout's requirements.txt leaves out the first two."""

HARD_WIRED = (
    "data.max_frames", "data.max_clips", "model.name", "model.window", "model.lorentz_window",
    "model.lorentz_divisor", "model.block_curvature", "model.head_merge", "model.fusion",
    "model.gaze", "model.glance", "model.video_level", "model.learned_curvature",
    "loss.clip_triplet", "loss.frame_triplet", "loss.optimal_matching", "loss.diversity_form",
    "loss.min_radius", "optim.beta1", "optim.beta2", "optim.epsilon", "optim.weight_decay",
    "optim.clip_norm",
)  # fmt: skip
"""Fields of the configuration whose defaults are fixed in the released code."""


class PeerError(UserError, ValueError):
    """The released code cannot be run; the message says why and what to do."""


class Released:
    """The training step of the released code, on one device."""

    def __init__(self, checkout: Path, config: ConfigDict, device: str) -> None:
        """Build model, loss and optimiser from a checkout, seeded with the configuration's seed.

        Args:
          checkout: the folder of the released code.
          config: the configuration.
          device: "cpu" or "cuda".

        Raises:
          PeerError: if the released code cannot have this configuration, `checkout` is not the
            released code, a package is missing, or the device does not exist.
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
        # The schedule of the learning rate needs the number of steps of an epoch: 1,000.
        get_opts = self._modules["Opts.builder"].get_opts
        self._optimiser = get_opts(self._settings, self._model, range(1000))

    def convert(self, batch: Batch) -> dict[str, Any]:
        """Convert a batch of this package to one of the released training loader, on the device.

        The collate function of the released code makes it: without padded videos and captions, cut
        to the longest video and caption, videos with the most frames first.
        """
        if batch.videos.mask.sum() < 2 or batch.captions.mask.sum() < 2:
            raise PeerError("the released code needs two videos and two captions in a batch")
        tensor = self._torch.from_numpy
        texts, videos = batch.captions, batch.videos
        captions = [
            (int(texts.video[row]), tensor(np.asarray(texts.words[row][texts.word_mask[row]])))
            for row in np.flatnonzero(texts.mask)
        ]
        clips, frames, mask = map(np.asarray, (videos.clips, videos.frames, videos.frame_mask))
        items = [
            (
                tensor(clips[row].copy())[None],
                tensor(frames[row][mask[row]]),
                [words for video, words in captions if video == row],
                int(row),
                (),
                "",
            )
            for row in np.flatnonzero(videos.mask)
        ]
        with self._as_released():
            collated = self._modules["Datasets.data_provider"].collate_train(items)
            moved: dict[str, Any] = self._modules["Utils.utils"].gpu(collated)
        return moved

    def step(self, batch: Mapping[str, Any]) -> float:
        """Take one step of the released training loop; wait for the result and return the loss.

        The triplet loss takes no hard negatives, as in the first epochs.

        Args:
          batch: the result of `convert`.
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
        """Let the released code call `.cuda()` without a GPU, and hide its progress bars."""
        tensor, bars = self._torch.Tensor, io.StringIO()
        with contextlib.redirect_stdout(bars), contextlib.redirect_stderr(bars):
            if self._device == "cuda":
                yield
                return
            tensor.cuda = _stay_on_cpu  # hides the inherited method
            try:
                yield
            finally:
                del tensor.cuda


def _stay_on_cpu(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


def settings(config: ConfigDict) -> dict[str, Any]:
    """Translate a configuration to the names of the released code.

    Raises:
      PeerError: if a field differs from the fixed value of the released code; the message names all
        such fields.
    """
    data, model, loss, optim = config.data, config.model, config.loss, config.optim
    blocks = max(1, model.lorentz_blocks)
    widths = (0, *(2**k for k in range(1, blocks)))
    defaults, values = flat(default()), flat(config)
    required = {name: defaults[name] for name in HARD_WIRED}
    for geometry in ("euclidean", "lorentz"):
        required[f"model.{geometry}_blocks"] = blocks
        required[f"model.{geometry}_widths"] = widths if model[f"{geometry}_widths"] else ()
    if differing := [name for name in required if values[name] != required[name]]:
        what = ", ".join(f"config.{n} {values[n]!r} (only {required[n]!r})" for n in differing)
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
    """Import the released modules from a checkout."""
    root = checkout.expanduser().resolve() / "src"
    files = {name: root / f"{name.replace('.', '/')}.py" for name in MODULES}
    if missing := [str(path) for path in files.values() if not path.is_file()]:
        raise PeerError(
            f"{checkout} is not a checkout of the released HLFormer: it lacks {', '.join(missing)}"
        )
    _import("torch", checkout)
    if str(root) not in sys.path:  # as for its main.py; its worker processes may need it too
        sys.path.insert(0, str(root))
    modules = {name: _import(name, checkout) for name in MODULES}
    for name, path in files.items():
        if Path(modules[name].__file__).resolve() != path:
            raise PeerError(
                f"{name} is already loaded from {modules[name].__file__}: start a new process"
            )
    return modules


def _import(name: str, checkout: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # deprecations in its dependencies
            return importlib.import_module(name)
    except ImportError as error:
        raise PeerError(
            f"{checkout} cannot be imported ({error}): pip install {REQUIREMENTS}"
        ) from None
