"""Modules of a package, and what they define, as its attributes, loaded at their first use."""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any


def namespace(
    package: str, modules: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
      package: its name.
      modules: its modules, each with the names in it, parted by spaces, that are the package's too;
        None: all in its folder, without names.
    """
    if modules is None:
        found = pkgutil.iter_modules(sys.modules[package].__path__)
        modules = {module.name: "" for module in found}
    module_of = {name: module for module, names in modules.items() for name in names.split()}
    public = sorted({*modules, *module_of})

    def load(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{module_of.get(name, name)}")
        return getattr(module, name) if name in module_of else module

    return load, lambda: sorted({*vars(sys.modules[package]), *public}), public
