"""The benchmark: its command line, clock, random data and measuring programs."""

import sys
import types
from types import SimpleNamespace

import jax
import numpy as np
import processes
import pytest
import runs

from benchmarks import geometry, measure
from benchmarks import step as measured
from benchmarks.measure import Floor, Options
from benchmarks.step import PeerError, Training
from hlformer_jax import models
from hlformer_jax.config import debug, default
from hlformer_jax.data.feed import Schedule
from hlformer_jax.data.sources.protocol import SPLITS
from hlformer_jax.runtime import compiler, devices
from hlformer_jax.training import optim, prvr, step
from hlformer_jax.training.step import init_state

# The command line


CASES = {
    "no name": ((), "give one name: step"),
    "unknown name": (("speed",), "give one name: step"),
    "peer of another": (("query", "--peer=nowhere"), "--peer goes with step"),
    "another family": (
        ("query", f"--config={processes.ROOT}/configs/hover.py:synthetic"),
        "configs/anet.py",
    ),
    "no checkout": (("step", "--peer=nowhere"), "nowhere"),
    "no number": (("query", "--videos=some"), "--videos=some"),
    "field without configuration": (
        ("plan", "--config.dtype=bfloat16"),
        "--config.dtype needs --config",
    ),
    "no hours": (("search", "--hours=0"), "--hours=0: give hours above 0"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    arguments = [arguments for arguments, _ in CASES.values()]
    endings = processes.calls("benchmarks", arguments, tmp_path_factory.mktemp("benchmark"))
    return dict(zip(CASES, endings, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_wrong_command_prints_one_line(case, results):
    processes.check_error(results[case], CASES[case][1])


WITHOUT_EXTRAS = """
import sys

sys.modules.update(dict.fromkeys({packages}))  # importing one of them is an ImportError now
from absl import flags
from benchmarks import __main__ as benchmark

flags.FLAGS(["benchmarks", "--encoder=tiny"])
for name in benchmark.PROGRAMS:
    if name in ("search", "index"):
        assert benchmark.main(["benchmarks", name]) == 1
    else:
        benchmark._program(name)
"""


@pytest.mark.slow  # it takes seconds
def test_programs_need_no_extra_or_name_it():
    needed = {"av", "fastapi", "huggingface_hub", "PIL", "pywt", "safetensors", "tokenizers"}
    packages = [*needed, "uvicorn", "ray", "psycopg", "sklearn", "umap", "torch", "lancedb"]
    done = processes.finish([sys.executable, "-c", WITHOUT_EXTRAS.format(packages=packages)])
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and all("[search]" in error for error in errors)


# The clock, the floor and the random data


@pytest.mark.slow
def test_floor_is_the_slower_of_arithmetic_and_memory():
    peak = measure.ceilings()
    assert peak.flops > 1e8 and peak.bytes > 1e8
    assert measure.floor(peak.flops, 1.0).seconds == pytest.approx(1)
    assert measure.floor(1.0, 2 * peak.bytes).seconds == pytest.approx(2)


READ = """
import jax, jax.numpy as jnp
from benchmarks import measure
rows = jnp.ones(2**26)
read = measure.timed(jax.jit(jnp.sum), rows, seconds=1.0).low
print(measure.floor(0.0, rows.nbytes).seconds / read)
"""


@pytest.mark.slow  # it takes seconds
def test_floor_of_reading_is_a_lower_bound():
    # With XLA's optimisations, which the tests switch off.
    environment = processes.environment() | {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    done = processes.finish([sys.executable, "-c", READ], environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2  # rates vary by a third while other programs run


def test_clock_skips_the_first_run_and_waits(monkeypatch):
    clock, durations = [0.0], iter((64.0, 0.5, 0.125, 0.25, 0.625, 0.375))

    class Result:
        def block_until_ready(self):
            clock[0] += next(durations)
            return self

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert measure.timed(Result, repeats=5) == measure.Timing(0.375, 0.125, 0.625, 5)
    assert next(durations, None) is None


def _config():
    config = default()
    config.data.update(visual_dim=6, text_dim=5, max_frames=9, max_clips=4, max_words=3)
    return config


def test_simulated_split_has_the_requested_sizes():
    split = measure.simulated_split(7, 30, _config())
    assert (len(split), len(split.caption_video)) == (7, 30)
    assert split[0].clips.shape == (4, 6)


def test_released_files_have_the_sizes_of_the_configuration(tmp_path):
    collection = measure.released_files(str(tmp_path), 12, _config())
    with collection.open() as reader:
        assert [len(reader.splits[split]) for split in SPLITS] == [12, 8, 8]
        video = next(iter(reader.splits["train"]))
        assert reader.read_frames(video).shape[1] == 6
        assert max(map(reader.num_frames, reader.splits["train"])) <= 9


# A step, preparation and compiling


def _wide_config():
    config = default()
    config.data.update(visual_dim=512, text_dim=256, max_frames=32, max_clips=16, max_words=8)
    config.model.update(hidden_size=192, lorentz_dim=63, euclidean_blocks=2, lorentz_blocks=3)
    return config


@pytest.mark.slow  # it compiles for seconds
def test_step_operations_match_its_products():
    config = _wide_config()
    model, videos, captions = models.build(config), 6, 20
    batch = models.zero_batch(config, videos, captions)
    params = jax.eval_shape(lambda: models.init_params(model, config))

    def forward(params, batch):
        return (
            models.encode_video(model, params, batch.videos),
            models.encode_query(model, params, batch.captions),
        )

    forwards = compiler.count_flops(forward, params, batch)
    optimiser = optim.build(config.optim, model.module, 10)
    loss = prvr.build_objective(config, model)
    state = jax.eval_shape(lambda: init_state(models.init_params(model, config), optimiser))

    def train_step(loss, state, batch):
        return step.train_step(loss, optimiser)(state, batch)

    counted = compiler.count_flops(train_step, loss, state, batch)
    # Backwards every product becomes two, except with features, which need no gradient.
    inputs = videos * (config.data.max_clips + config.data.max_frames) * config.data.visual_dim
    inputs += captions * config.data.max_words * config.data.text_dim
    expected = 3 * forwards - 2 * inputs * config.model.hidden_size
    assert 0.95 < counted / expected < 1.2  # the objective and the optimiser come on top


@pytest.mark.slow  # it compiles for seconds
def test_encoding_in_parts_takes_less_memory():
    wide = {"model.hidden_size": 64, "data.max_frames": 64, "data.visual_dim": 128}
    plain, in_parts = (
        Training(runs.retrieval("", **wide, **parts, **{"train.batch_size": 64}), 64, 1)
        for parts in ({}, {"train.encode_parts": 4})
    )
    plain_memory, memory_in_parts = (
        compiler.memory_plan(x.compiled.program) for x in (plain, in_parts)
    )
    # The memory of parameters, gradients and the optimiser's moments does not shrink.
    assert memory_in_parts["temporary"] < 0.75 * plain_memory["temporary"]
    assert in_parts.flops() == plain.flops() > 1e8


def test_prepare_rate_and_floor_count_input_bytes():
    config = default()
    config.data.update(visual_dim=6, text_dim=5, max_frames=30)
    [row] = measured.prepare(config, Options(videos=9))
    assert row.timing.repeats == 3 and row.timing.low > 0
    assert row.facts["MB/s"] == row.facts["MB"] / row.timing.median
    assert row.floor.bytes == 2e6 * row.facts["MB"]
    assert 0 < row.floor.seconds < row.timing.median


def test_debug_epoch_has_one_program_for_both_feeds():
    config = debug(default())
    resident, streamed = (
        measure.simulated_family(config, devices.mesh(), 24, 72, is_resident).feed(
            Schedule(24, config.train.batch_size, config.seed).groups(1, 24)
        )
        for is_resident in (True, False)
    )
    assert resident.resident and not streamed.resident
    assert resident.shapes() == streamed.shapes()
    resident.close()
    streamed.close()


@pytest.mark.slow  # it compiles for seconds
def test_compiling_is_timed_part_by_part():
    is_enabled = jax.config.jax_enable_compilation_cache
    try:
        rows = list(measured.compilation(runs.retrieval(""), Options()))
    finally:
        jax.config.update("jax_enable_compilation_cache", is_enabled)
    assert [row.what for row in rows] == ["initial parameters", "training", "evaluation"]


# Functions of hyperbolic space


@pytest.fixture
def few_functions(monkeypatch):
    """Measure two functions only, with this package in the place of a peer."""
    monkeypatch.setattr(geometry, "FUNCTIONS", ("distance", "pairwise_distance"))
    monkeypatch.setattr(geometry, "LAYERS", ())
    monkeypatch.setattr(geometry, "floor", lambda flops, moved: Floor(flops, moved, 1.0))
    functions = geometry.package_functions()
    monkeypatch.setattr(geometry, "peers", lambda dtype, sizes: {"peer": functions})


@pytest.mark.slow  # it compiles every function in two precisions
def test_geometry_rows_have_times_errors_and_peers(few_functions):
    rows = list(geometry.geometry(debug(default()), Options(repeats=3)))
    assert [row.what for row in rows] == [
        f"{model}.{name}, {shape}"
        for model in geometry.MODELS
        for name, shape in (("distance", "[20, 4]"), ("pairwise_distance", "[8, 4]"))
    ]
    # Two arrays of 20 or 8 points, which have a time component in the Lorentz model, and distances.
    numbers = [2 * 20 * 5 + 20, 2 * 8 * 5 + 8 * 8, 2 * 20 * 4 + 20, 2 * 8 * 4 + 8 * 8]
    assert [row.floor.bytes for row in rows] == [4 * count for count in numbers]
    for row in rows:
        assert row.timing.repeats == 3 and row.facts["peer: times as long"] > 0
        assert ("peer: gradients times as long" in row.facts) == ("pairwise" not in row.what)
        for dtype in geometry.SMALL.dtypes:
            bound = 64 * np.finfo(dtype).eps
            for prefix in ("", "peer: "):
                assert row.facts[f"{prefix}not finite, {dtype}"] == 0
                assert 0 < row.facts[f"{prefix}error, {dtype}"] < bound
                assert 0 < row.facts[f"{prefix}gradient's error, {dtype}"] < bound


@pytest.mark.slow  # it compiles every function
@pytest.mark.parametrize("model", geometry.MODELS)
@pytest.mark.parametrize("name", geometry.FUNCTIONS)
def test_reference_of_sixty_digits_agrees_with_functions(model, name):
    libraries = {"package": geometry.package_functions()}
    [(_, facts)] = geometry.errors_of(model, name, "float32", libraries, (0.1, 1.0))
    assert facts["not finite"] == 0
    assert facts["error"] < 1e-5 and facts["gradient's error"] < 1e-4


@pytest.mark.slow  # it takes seconds
def test_wrong_or_infinite_value_is_detected():
    package = geometry.package_functions()
    wrong = {
        ("lorentz", "distance"): lambda x, y: package.functions["lorentz", "distance"](x, y) * 1.01,
    }
    infinite = {("lorentz", "distance"): lambda x, y: 0 * y[..., 1] / (x - y)[..., 1]}
    libraries = {
        "wrong": package._replace(functions=wrong),
        "infinite": package._replace(functions=infinite),
    }
    facts = dict(geometry.errors_of("lorentz", "distance", "float32", libraries))
    np.testing.assert_allclose(facts["wrong"]["error"], 0.01, rtol=1e-3)
    np.testing.assert_allclose(facts["wrong"]["gradient's error"], 0.01, rtol=1e-3)
    assert facts["infinite"]["not finite"] >= 2 * len(geometry.Sizes().radii)


def _checkout(folder, content=""):
    for name in measured.MODULES:
        path = folder / "src" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


@pytest.fixture
def restored_modules(monkeypatch):
    """Restores sys.path and removes the released modules after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules_before = set(sys.modules)
    yield
    for name in set(sys.modules) - modules_before:
        if name.split(".")[0] in {module.split(".")[0] for module in measured.MODULES}:
            del sys.modules[name]


def test_default_configuration_maps_to_released_settings():
    config = default()
    config.model.update(hidden_size=64, lorentz_dim=31, euclidean_blocks=2, lorentz_blocks=2)
    config.model.lorentz_widths = (0, 2)
    settings = measured.settings(config)
    assert (settings["hidden_size"], settings["lorentz_dim"], settings["attention_num"]) == (
        64,
        31,
        4,
    )
    assert settings["loss_factor"] == [0.02, 0.04, 0.003, 0.001]
    assert settings["neg_factor"] == [0.2, 32.0, 1.0]


@pytest.mark.parametrize(
    ("field", "value", "only"),
    [
        ("model.fusion", "mean", "'maim'"),
        ("model.euclidean_blocks", 3, "4"),
        ("model.lorentz_blocks", 0, "1"),
        ("model.lorentz_widths", (0, 2, 4, 16), r"\(0, 2, 4, 8\)"),
    ],
)
def test_unmappable_configuration_names_its_field(field, value, only):
    config = default()
    section, name = field.split(".")
    config[section][name] = value
    with pytest.raises(PeerError, match=rf"config\.{field} .*\(only {only}\)") as error:
        measured.settings(config)
    assert "\n" not in str(error.value)


def test_incomplete_checkout_names_missing_files(tmp_path):
    (_checkout(tmp_path) / "src" / "Opts" / "builder.py").unlink()
    with pytest.raises(PeerError, match="checkout") as error:
        measured.Released(tmp_path, default(), "cpu")
    assert "Opts/builder.py" in str(error.value)
    assert "Losses/builder.py" not in str(error.value)


def test_missing_torch_is_reported_with_its_package(tmp_path, monkeypatch, restored_modules):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PeerError, match="geoopt"):
        measured.Released(_checkout(tmp_path), default(), "cpu")


def test_missing_package_of_the_checkout_is_named(tmp_path, monkeypatch, restored_modules):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with pytest.raises(PeerError, match="no_such_geometry"):
        measured.Released(_checkout(tmp_path, "import no_such_geometry"), default(), "cpu")


STAND_IN = """
get_models = lambda settings: Model()
get_losses = get_opts = set_seed = lambda *arguments: None
collate_train = lambda items: {"items": items}
gpu = lambda batch: batch
class Model:
    def to(self, device):
        return self
"""


def test_batch_is_converted_for_the_released_loader(tmp_path, monkeypatch, restored_modules):
    torch = types.ModuleType("torch")
    torch.from_numpy, torch.Tensor = np.asarray, type("Tensor", (), {})
    monkeypatch.setitem(sys.modules, "torch", torch)
    config = default()
    config.train.batch_size = 4
    family = measure.simulated_family(config, devices.mesh(), videos=3, captions=7)
    feed = family.feed(Schedule(3, 4, seed=0).groups(1, 1))  # one video is padded
    batch = measure.first_batch(feed, next(feed.chunks()))
    feed.close()
    peer = measured.Released(_checkout(tmp_path, STAND_IN), config, "cpu")
    items = peer.convert(batch)["items"]

    assert len(items) == 3
    words = [caption for item in items for caption in item[2]]
    assert len(words) == 7
    for row, (clips, frames, captions, index, *_) in enumerate(items):
        assert index == row and clips.shape == (1, 32, 1024)
        np.testing.assert_array_equal(
            frames, batch.videos.frames[row][batch.videos.frame_mask[row]]
        )
        caption_rows = np.flatnonzero(batch.captions.mask & (batch.captions.video == row))
        for caption, caption_row in zip(captions, caption_rows, strict=True):
            is_word = batch.captions.word_mask[caption_row]
            np.testing.assert_array_equal(caption, batch.captions.words[caption_row][is_word])


def test_second_checkout_in_a_process_is_refused(tmp_path, monkeypatch, restored_modules):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert set(measured._load(_checkout(tmp_path / "first"))) == set(measured.MODULES)
    with pytest.raises(PeerError, match="first"):
        measured._load(_checkout(tmp_path / "second"))
