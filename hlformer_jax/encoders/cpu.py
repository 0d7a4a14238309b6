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

_TELEMETRY = "openvino_telemetry"


def is_installed() -> bool:
    """Return whether OpenVINO is installed."""
    return importlib.util.find_spec("openvino") is not None


def compile_program(
    function: Callable[[Any], Any], argument: jax.ShapeDtypeStruct
) -> Callable[[np.ndarray], np.ndarray]:
    """Compile a function of one array with OpenVINO, which computes in float32.

    Args:
      function: a function that JAX can trace, without loops whose length depends on values.
      argument: shape and dtype of the function's argument.

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
    graph = decoder.JaxprPythonDecoder(traced)  # must not be freed before the conversion ends
    model = frontend.convert(frontend.load(graph))
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",  # the default is bfloat16 if the CPU supports it
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
    must_block = _TELEMETRY not in sys.modules
    if must_block:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # importing it fails
    try:
        return importlib.import_module("openvino")
    finally:
        if must_block:
            del sys.modules[_TELEMETRY]
