"""Imports at first use: the modules of a namespace, and packages of an extra."""

import importlib
import importlib.metadata
import json
import pkgutil
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from hlformer_jax.errors import MissingExtra, is_memory_error


def namespace(
    package: str, modules: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package that loads its modules late.

    Args:
      package: the name of the package.
      modules: the modules of the package. The value of a module lists the names, separated by
        spaces, that the package re-exports from it. None: all modules in the package's folder,
        without re-exported names.
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


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this package for the running Python.

    The command names the checkout or the wheel that this package was installed from, because no
    package index has the package, and anybody could register its name on one.
    """
    checkout = Path(__file__).parents[1]
    if (checkout / "pyproject.toml").is_file():
        requirement = ["--editable", f"{checkout}[{extra}]"]
    else:
        requirement = [_add_extra(_installed_from(), extra)]
    return shlex.join([sys.executable, "-m", "pip", "install", *requirement])


def _installed_from() -> str:
    """Return the address that pip recorded when it installed this package; "" if it did not."""
    try:
        record = importlib.metadata.distribution("hlformer-jax").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return ""
    if not record:
        return ""
    source = json.loads(record)
    if repository := source.get("vcs_info"):
        return f"{repository['vcs']}+{source['url']}@{repository['commit_id']}"
    return str(source["url"])


def _add_extra(address: str, extra: str) -> str:
    """Return the requirement of an extra of the package at an address."""
    if address.startswith("file:"):
        return f"{unquote(urlsplit(address).path)}[{extra}]"
    if address:
        return f"hlformer-jax[{extra}] @ {address}"
    return f"WHEEL_OF_A_RELEASE[{extra}]"


def optional(module: str, extra: str) -> Any:
    """Import a module that needs an extra of this package, and return it.

    Args:
      module: the full name of the module.
      extra: the name of the extra.

    Raises:
      MissingExtra: if the extra is not installed; the message says how to install it.
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
            f"{module} needs more packages: {install_command(extra)} ({error})"
        ) from None
