"""Imports at first use: the modules of a namespace, and packages of an extra."""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hlformer_jax.errors import MissingExtra, is_memory_error


def namespace(
    package: str, modules: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package that loads its modules late.

    Args:
      package: its name.
      modules: its modules, each with the names in it, separated by spaces, that the package has
        too; None: all modules in its folder, without names.
    """
    if modules is None:
        modules = {
            module.name: "" for module in pkgutil.iter_modules(sys.modules[package].__path__)
        }
    module_of = {name: module for module, names in modules.items() for name in names.split()}
    public = sorted({*modules, *module_of})

    def load(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{module_of.get(name, name)}")
        return getattr(module, name) if name in module_of else module

    return load, lambda: sorted({*vars(sys.modules[package]), *public}), public


def optional(module: str, extra: str) -> Any:
    """Import a module that needs an extra of this package.

    Raises:
      MissingExtra: if the extra is not installed; says how to install it.
      MemoryError: if memory is too short to load the module.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (error.name or "").startswith("hlformer_jax"):
            raise
        if is_memory_error(error):
            raise MemoryError(str(error)) from None
        raise MissingExtra(
            f'{module} needs more packages: pip install "hlformer-jax[{extra}]" ({error})'
        ) from None
