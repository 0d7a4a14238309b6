"""Plans for a GPU: kernels of a recorded program, counted by hand, and the budget of a step.

`plan.hlo` is XLA's scheduled text for an H200 of the function below, without parts that are not
read:

    def f(w, b, features, rows, count):  # [256, 384], [384, 128], [100000, 256], [7, 1024], []
        def body(i, w):
            x = features[rows[i]].astype(jnp.bfloat16)
            y = dropout(jax.random.key(i), jnp.exp(x @ w.astype(jnp.bfloat16)), 0.1)
            return w + jnp.asarray(x.T @ y, jnp.float32)
        w = jax.lax.fori_loop(0, count, body, w)
        row = lambda x: jnp.dot(x, w, precision="highest") @ b
        return jax.lax.map(row, features[:4096].reshape(8, 512, 256))
"""

import importlib.util
import json
import pathlib
import sys
from types import SimpleNamespace

import processes
import pytest

from benchmarks import measured, plan
from benchmarks.measure import Options
from hlformer_jax import files
from hlformer_jax.config import MODEL_TITLES, default

HLO = (pathlib.Path(__file__).parent / "plan.hlo").read_text()
BUDGET = pathlib.Path(__file__).parent / "budget.json"
H200 = plan.GPUS["h200"]


@pytest.fixture(scope="module")
def kernels():
    return {kernel.name: kernel for kernel in plan.kernels(plan.Hlo(HLO), turns=5)}


def test_kernel_in_a_loop_counts_every_iteration(kernels):
    assert kernels["loop_convert_fusion"].times == 5  # its count is an argument
    assert kernels["loop_dynamic_slice_fusion"].times == 8  # its count is in the program
    assert kernels["wrapped_slice"].times == 1
    assert not any(name.startswith(("bitcast", "tuple", "get-tuple")) for name in kernels)


def test_kernel_moves_the_bytes_it_reads_and_writes(kernels):
    moved = {name: kernel.bytes for name, kernel in kernels.items()}
    rows = 1024 * 256
    # 1,024 rows of float32 and their indices, of the counter, to bfloat16.
    assert moved["loop_convert_fusion"] == 4 * rows + 4 * 1024 + 4 + 2 * rows
    assert moved["wrapped_slice"] == 2 * 4 * 4096 * 256  # not all of the features
    assert moved["custom-call.2"] == 2 * (rows + 256 * 384 + 1024 * 384)  # without its workspace
    # In place: a slice of the result, and the counter.
    assert moved["loop_dynamic_update_slice_fusion"] == 2 * 4 * 512 * 128 + 4


def test_operations_are_counted_by_precision_or_unit(kernels):
    product = 2 * 1024 * 256 * 384
    assert kernels["custom-call.2"].operations == {"bfloat16": product}
    assert kernels["cublas-lt-matmul.2"].operations == {"bfloat16": product}
    assert kernels["custom-call.5"].operations == {"float32": 2 * 512 * 256 * 384}
    assert kernels["custom-call.6"].operations == {"tf32": 2 * 512 * 384 * 128}
    mask = kernels["loop_select_fusion"].operations
    assert mask["special"] == 1024 * 384  # of exp
    assert 15 * 1024 * 384 < mask["integer"] < 30 * 1024 * 384  # of the hash


def test_kernel_has_its_source_line(kernels):
    assert kernels["loop_select_fusion"].line.startswith("ops/dropout.py:")
    assert kernels["custom-call.2"].line.startswith("/record.py:")


def test_kernel_takes_the_largest_of_its_times():
    kernel = plan.Kernel("", "", "", 1, 4.8e9 * plan.MEMORY, {"bfloat16": 989e9 * plan.PRODUCTS})
    assert kernel.parts(H200) == pytest.approx({"memory": 1e-3, "bfloat16": 1e-3})
    assert kernel.seconds(H200) == pytest.approx(1e-3 + plan.LAUNCH)
    assert kernel.seconds(plan.GPUS["h100"]) == pytest.approx(4.8e-3 / 3.352 + plan.LAUNCH)


@pytest.fixture
def step_plan():
    labels = {"program": "step", "gpu": "h200", "dtype": "bfloat16"}
    return labels | plan.summary(HLO, H200, {"peak": 1e9}, turns=5)


def test_plan_adds_up_and_is_read_again(step_plan, tmp_path):
    assert step_plan["seconds"] == pytest.approx(sum(step_plan["lines"].values()))
    assert step_plan["seconds"] == pytest.approx(sum(step_plan["bound"].values()))
    seconds = [kernel["seconds"] for kernel in step_plan["dearest"]]
    assert seconds == sorted(seconds, reverse=True)
    written = tmp_path / "plan.json"
    written.write_text(json.dumps(step_plan))
    assert plan.read(written) == step_plan
    written.write_text("{}")
    with pytest.raises(plan.ConfigError):
        plan.read(written)


def test_plan_is_shown_compared_and_drawn(step_plan, tmp_path, capsys):
    plan.show(step_plan)
    plan.show(step_plan, step_plan | {"seconds": 2 * step_plan["seconds"]})
    assert "planned, not measured" in capsys.readouterr().out
    plan.tree_map(step_plan, tmp_path / "map", files.Replace.NOTHING)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.csv", "map.png", "map.svg"]


def test_tiles_cover_the_area_in_proportion():
    weights = [4.0, 3.0, 2.0, 1.0]
    tiles = plan._tiles([(str(weight), weight) for weight in weights])
    assert [width * height for _, _, width, height in tiles] == pytest.approx(
        [weight / 10 for weight in weights]
    )


# Measured


def _plane(name, **lines):
    """Return a plane of a JAX profile: the names and nanoseconds of the kernels of each line."""
    events = {
        line: [SimpleNamespace(name=kernel, duration_ns=ns) for kernel, ns in kernels]
        for line, kernels in lines.items()
    }
    listed = [SimpleNamespace(name=line, events=kernels) for line, kernels in events.items()]
    return SimpleNamespace(name=name, lines=listed)


def test_profile_sums_kernels_of_gpu_streams():
    planes = [
        _plane("/device:GPU:0", Stream1=[("a", 5), ("b", 7)], Stream2=[("a", 6)], Steps=[("a", 9)]),
        _plane("/host:CPU", Stream1=[("a", 100)]),
    ]
    sums = measured.sums(planes)
    assert sums == {"a": (pytest.approx(11e-9), 2), "b": (pytest.approx(7e-9), 1)}


def test_measured_kernel_has_its_plan_and_source_line(kernels):
    recorded = {
        "loop_select_fusion": measured.Recorded(1e-3, 10),
        "nvjet_128x64": measured.Recorded(5e-3, 20),  # of a library
    }
    [product, mask] = measured.beside_plan(recorded, kernels.values(), H200, units=5)
    assert product == {
        "kernel": "nvjet_128x64", "seconds": 1e-3, "times": 4, "planned": None, "line": None
    }  # fmt: skip
    assert mask["seconds"] == pytest.approx(2e-4) and mask["times"] == 2
    assert mask["planned"] == pytest.approx(2 * kernels["loop_select_fusion"].seconds(H200))
    assert mask["line"].startswith("ops/dropout.py:")


def test_measured_kernels_are_printed(step_plan, kernels, capsys):
    recorded = {"loop_select_fusion": measured.Recorded(1e-3, 10)}
    rows = measured.beside_plan(recorded, kernels.values(), H200, units=5)
    seconds = {"low": 0.01, "median": 0.02, "high": 0.03, "compile": 9.0}
    result = step_plan | {"measured": seconds, "kernels_measured": rows}
    measured.show_measured([result], "a card")
    printed = capsys.readouterr().out
    assert "planned for h200, measured on a card" in printed
    assert "step, bfloat16: the most expensive kernels" in printed
    assert "loop_select_fusion" in printed and "ops/dropout.py" in printed


def test_programs_without_time_left_are_named(monkeypatch, capsys):
    monkeypatch.setattr(measured, "MEASURING_SECONDS", -1)
    assert list(measured.measured(["step", "query"], "h100", default(), Options())) == []
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in lines] == [
        " step, bfloat16", " step, tf32", " step, float32", " query, bfloat16"
    ]  # fmt: skip
    assert "--program=query" in lines[-1]


compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None
    and importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="needs XLA's compiler for GPUs: install the extra cuda12",
)


@pytest.mark.slow  # it takes seconds
@pytest.mark.skipif(not compiler.mark.args[0], reason="a compiler for GPUs is installed")
def test_missing_compiler_is_reported_with_its_package():
    done = processes.run("benchmarks", "plan", "--program=query")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: ") and "cuda12" in done.stderr
    assert "Traceback" not in done.stderr


COMPILE = """
import json, sys
from benchmarks import plan
from benchmarks.measure import Options
from hlformer_jax.config import default
config = default()
if sys.argv[3] == "tf32":
    config.precision = "tf32"
else:
    config.dtype = sys.argv[3]
print(json.dumps(plan.plan(sys.argv[1], sys.argv[2], config, Options())))
"""


def _run(*program):
    # With all of XLA's optimisations, which the tests switch off.
    environment = processes.environment() | {"XLA_FLAGS": ""}
    environment.pop("JAX_DISABLE_MOST_OPTIMIZATIONS", None)
    done = processes.finish([sys.executable, *program], environment, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def _plan(*arguments):
    return json.loads(_run("-c", COMPILE, *arguments))


@pytest.mark.slow  # it compiles for seconds
@compiler
@pytest.mark.parametrize("gpu", plan.GPUS)
@pytest.mark.parametrize("name", ["query", "search"])
def test_programs_of_a_search_are_planned_for_each_gpu(name, gpu):
    planned = _plan(name, gpu, "float32")
    assert 0 < planned["seconds"] < 0.02 and planned["memory"]["peak"] < 4e9


@pytest.mark.slow  # it compiles for minutes
@compiler
@pytest.mark.parametrize("precision", ["bfloat16", "float32", "tf32"])
def test_step_keeps_its_budget(precision):
    step, budget = _plan("step", "h200", precision), json.loads(BUDGET.read_text())[precision]
    quantities = {"ms": 1e3 * step["seconds"], "launches": step["launches"]}
    quantities |= {"GB moved": step["bytes"] / 1e9}
    quantities |= {"GB of temporaries": step["memory"]["temporary"] / 1e9}
    worse = {name for name, value in quantities.items() if value > 1.05 * budget[name]}
    assert not worse, f"planned {quantities}, budget {budget}"


COMPILE_ALL = """
import re, sys
from benchmarks import plan
from benchmarks.measure import Options
from hlformer_jax.config import debug, default, of_model
config = debug(default("hover") if sys.argv[1] == "hover" else of_model(sys.argv[1]))
config.data.update(data_dir=sys.argv[2], visual_dim=16, text_dim=16, max_words=8)
config.train.batch_size = 32
devices = []
for number, dtype in ((1, "float32"), (8, "bfloat16")):
    config.dtype = dtype
    mesh = plan.mesh(plan.GPUS["h100"], number)
    for name in plan.OF_EVERY_FAMILY:
        compiled, _ = plan.compiled(name, mesh, config, Options(videos=24))
        collectives = "all-reduce|all-gather|reduce-scatter|all-to-all"
        devices.append(8 if re.search(collectives, compiled.as_text()) else 1)
print(*devices)
"""


@pytest.mark.slow  # it compiles for a minute
@compiler
@pytest.mark.parametrize("model", MODEL_TITLES)
def test_every_model_compiles_for_one_and_eight_gpus(model, tmp_path):
    assert _run("-c", COMPILE_ALL, model, str(tmp_path)).split() == ["1", "1", "8", "8"]


@pytest.mark.slow  # it compiles every program
def test_every_program_is_measured_beside_its_plan(tmp_path):
    config, path = (
        f"--config={processes.ROOT}/configs/gmmformer_v2.py:debug",
        tmp_path / "measured.json",
    )
    sizes = "--videos=24", "--hours=1", "--encoder=tiny", "--repeats=3"
    done = processes.run("benchmarks", "plan", "--measure", config, *sizes, f"--json={path}")
    assert done.returncode == 0, done.stderr
    assert "planned for h200, measured on cpu" in done.stdout
    written = json.loads(path.read_text())
    assert written["platform"] == "cpu"
    programs = [(program["program"], program["dtype"]) for program in written["programs"]]
    step_dtypes = ["bfloat16", "float32 (tf32)", "float32 (highest)"]
    programs_in_bfloat16 = ["evaluate", "query", "queries", "search", "extract"]
    expected = [("step", dtype) for dtype in step_dtypes]
    assert programs == expected + [(name, "bfloat16") for name in programs_in_bfloat16]
    for program in written["programs"]:
        seconds = program["measured"]
        assert program["kernels_measured"] == []  # only on a GPU
        assert 0 < seconds["low"] <= seconds["median"] <= seconds["high"]
        assert seconds["compile"] > 0
        assert program["seconds"] > 0 and program["kernels"] > 5 and program["memory"]["peak"] > 0
