"""Image encoders on a CPU: their precision, and OpenVINO's programs, which are faster than XLA's.

OpenVINO is optional (extra `cpu`). It takes the computation of an architecture as JAX traces it, so
an architecture is written once.
"""

import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

_TELEMETRY = "openvino_telemetry"


def default_precision() -> str:
    """Return "bfloat16" where the device is a CPU with AMX units for it, else "float32".

    Other processors compute bfloat16 no faster than float32, or were not measured.
    """
    return "bfloat16" if jax.default_backend() == "cpu" and has_amx() else "float32"


@functools.cache
def has_amx(path: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether Linux lists AMX for bfloat16 among the flags of the processor."""
    try:
        return "amx_bf16" in path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False


def is_missing() -> bool:
    """Return whether OpenVINO would be used, the device being a CPU, and is not installed."""
    return jax.default_backend() == "cpu" and importlib.util.find_spec("openvino") is None


def can_compile(precision: str) -> bool:
    """Return whether OpenVINO is installed, the device is a CPU, and it has the precision."""
    if jax.default_backend() != "cpu" or is_missing():
        return False
    capabilities = _openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return {"float32": "FP32", "bfloat16": "BF16"}[precision] in capabilities


def compile_program(
    function: Callable[[Any], Any], argument: jax.ShapeDtypeStruct, precision: str
) -> Callable[[np.ndarray], np.ndarray]:
    """Compile a function of one array by OpenVINO.

    Args:
      function: a function that JAX can trace, without loops that depend on values.
      argument: shape and dtype of its argument.
      precision: "float32" or "bfloat16", of products and of most values between them.

    Returns:
      The program; threads that call it wait for each other.

    Raises:
      RuntimeError: if OpenVINO does not know an operation.
    """
    openvino = _openvino()
    with jax.disable_jit():  # calls and loops over layers are traced operation by operation
        traced = jax.make_jaxpr(function)(argument)
    decoder = importlib.import_module("openvino.frontend.jax.jaxpr_decoder")
    frontend = openvino.frontend.FrontEndManager().load_by_framework("jax")
    graph = decoder.JaxprPythonDecoder(traced)  # has to outlive the conversion
    model = frontend.convert(frontend.load(graph))
    settings = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "PERFORMANCE_HINT": "LATENCY",  # all cores for one batch
    }
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    lock = threading.Lock()

    def run(array: np.ndarray) -> np.ndarray:
        with lock:
            return np.array(compiled(array)[0])

    return run


@functools.cache
def _openvino() -> Any:
    """Import OpenVINO without its telemetry, which would report the import over the network."""
    blocks = _TELEMETRY not in sys.modules
    if blocks:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # importing it fails
    try:
        return importlib.import_module("openvino")
    finally:
        if blocks:
            del sys.modules[_TELEMETRY]
