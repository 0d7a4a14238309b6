"""Compilation of image encoders for a CPU with OpenVINO, whose programs are faster than XLA's.

OpenVINO is optional (extra `cpu`). It compiles the computation that JAX traces, so an architecture
needs no second implementation.
"""

import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hlformer_jax.lazy import optional

_TELEMETRY = "openvino_telemetry"
_GROUP_SIZES = (128, 64, 32)
"""Numbers of inputs of a product that may share a scale in int8, the fastest first.

Products whose number of inputs is not a multiple of the smallest one are not rounded, because
OpenVINO 2026.4.1 computes those with an odd number of inputs wrongly.
"""


def is_installed() -> bool:
    """Return whether OpenVINO is installed."""
    return importlib.util.find_spec("openvino") is not None


@functools.cache
def has_bfloat16() -> bool:
    """Return whether bfloat16 is faster than float32 on this CPU, by its instructions."""
    if is_installed():
        try:
            # The default is bfloat16 exactly if the CPU has instructions that OpenVINO uses.
            default = _core().get_property("CPU", "INFERENCE_PRECISION_HINT")
            return default == _openvino().Type.bf16
        except (ImportError, RuntimeError):  # compile_program reports it
            pass
    instructions = optional("numkong", "search").get_capabilities()
    return instructions.get("genoa", False)  # AVX512_BF16, for XLA


def check_usable() -> None:
    """Check that OpenVINO can be imported.

    Raises:
      ImportError: if it cannot.
    """
    _openvino()


def compile_program(
    function: Callable[[Any], Any],
    argument: jax.ShapeDtypeStruct,
    precision: str = "float32",
) -> Callable[[np.ndarray], np.ndarray]:
    """Compile a function of one array with OpenVINO.

    Args:
      function: a function that JAX can trace, without loops whose length depends on values. Its
        parameters are constants in float32.
      argument: shape and dtype of the function's argument.
      precision: "float32", "bfloat16", or "int8": factors of products with constants are rounded to
        int8, constants with a scale per output, inputs with a scale per row and group of 32 to 128
        columns, unless the number of inputs is not a multiple of 32. All other operations are
        computed in bfloat16 if the CPU has instructions for it, else in float32.

    Returns:
      The compiled function. If several threads call it, they wait for each other.

    Raises:
      ImportError: if OpenVINO cannot be imported.
      RuntimeError: if OpenVINO does not support an operation.
    """
    openvino = _openvino()
    with jax.disable_jit():  # calls and loops over layers are traced operation by operation
        traced = jax.make_jaxpr(function)(argument)
    decoder = importlib.import_module("openvino.frontend.jax.jaxpr_decoder")
    frontend = openvino.frontend.FrontEndManager().load_by_framework("jax")
    # The graph must not be freed before the conversion ends. Since JAX 0.12 it finds no constants.
    graph = decoder.JaxprPythonDecoder(traced, literals=traced.consts)
    model = frontend.convert(frontend.load(graph))
    uses_bfloat16 = precision == "bfloat16" or (precision == "int8" and has_bfloat16())
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if uses_bfloat16 else "f32",
        "PERFORMANCE_HINT": "LATENCY",  # all cores for one batch
    }
    if precision == "int8":
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = str(_group_size(_quantise(model)))
    compiled = _core().compile_model(model, "CPU", settings)
    lock = threading.Lock()

    def run(array: np.ndarray) -> np.ndarray:
        with lock:
            return np.array(compiled(array)[0])

    return run


def _quantise(model: Any) -> dict[int, int]:
    """Round the constant right factors of a model's matrix products to int8.

    Each output has a scale of its own: the largest of its weights over 127.

    Returns:
      The number of rounded weights by the number of inputs of their products.
    """
    passes = importlib.import_module("openvino.passes")
    operations = importlib.import_module("openvino.opset13")
    manager = passes.Manager()
    manager.register_pass(passes.ConstantFolding())  # otherwise constants are slices of others
    manager.run_passes(model)
    counts: dict[int, int] = {}
    for product in model.get_ops():
        if product.get_type_name() != "MatMul":
            continue
        factor = product.input_value(1).get_node()
        if factor.get_type_name() != "Constant":
            continue
        values = np.asarray(factor.data, np.float32)
        axis = -1 if product.get_attributes()["transpose_b"] else -2
        if values.shape[axis] % _GROUP_SIZES[-1] or not np.all(np.isfinite(values)):
            continue  # see `_GROUP_SIZES`; and int8 would hide NaN and infinity
        largest = np.max(np.abs(values), axis=axis, keepdims=True)
        scale = np.where(largest > 0, largest, 1).astype(np.float32) / np.float32(127)
        rounded = operations.constant(np.rint(values / scale).astype(np.int8))
        scaled = operations.multiply(operations.convert(rounded, "f32"), operations.constant(scale))
        product.input(1).replace_source_output(scaled.output(0))
        counts[values.shape[axis]] = counts.get(values.shape[axis], 0) + values.size
    return counts


def _group_size(counts: dict[int, int]) -> int:
    """Return the size of groups that divides the inputs of most weights.

    OpenVINO rounds the inputs of other products in smaller groups, or not at all.
    """

    def fitting(size: int) -> int:
        return sum(count for inputs, count in counts.items() if inputs % size == 0)

    return max(_GROUP_SIZES, key=fitting)  # the first of several equal ones


@functools.cache
def _core() -> Any:
    """Return OpenVINO's state for this process.

    It is never freed. While OpenVINO's plugin for CPUs is loaded, the thread that loaded it handles
    signals on a stack of the plugin. If another thread frees the plugin, that stack is gone, and
    the next signal ends the process with a segmentation fault.
    """
    return _openvino().Core()


@functools.cache
def _openvino() -> Any:
    """Import OpenVINO without its telemetry, which would report the import over the network."""
    must_block = _TELEMETRY not in sys.modules
    if must_block:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # importing it fails
    try:
        return importlib.import_module("openvino")
    finally:
        if must_block:
            del sys.modules[_TELEMETRY]
