"""Lower bounds of dependencies exclude versions with known security holes or crashes."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]

SAFE = {
    # extra, package: the first safe version, and the fault of earlier versions
    ("search", "starlette"): (
        "1.9.0",
        "1.0.1: CVE-2025-62727, CVE-2026-48710; 1.7.0: [::1] as a host; 1.9.0: its case",
    ),
    ("search", "h11"): ("0.16.0", "CVE-2025-43859, request smuggling by chunks"),
    ("search", "av"): ("18.1.0", "those before crash the process that copies a clip of MS Video 1"),
    ("search", "tokenizers"): ("0.22.1", "those before do not allow huggingface_hub 1"),
    ("search", "pillow"): ("12.3.0", "CVE-2025-48379 (DDS), CVE-2026-25990 (PSD), 2026-59205"),
    ("search", "fastapi"): ("0.133.0", "those before do not allow starlette 1.0.1"),
    ("search", "pydantic"): ("2.4.0", "CVE-2024-3772, a regular expression"),
    ("search", "uvicorn"): ("0.11.7", "CVE-2020-7695, splitting of responses"),
    ("postgres", "psycopg"): ("3.3.5", "libpq 18.6 is bundled: CVE-2025-1094, 2025-12818"),
    ("mcp", "mcp"): ("1.23.0", "CVE-2025-53366, CVE-2025-66416"),
    ("", "tqdm"): ("4.66.3", "CVE-2024-34062, options that are executed"),
    ("ray", "ray"): ("2.52.0", "CVE-2025-62593, DNS rebinding"),
}
"""Packages of servers, connections and files, by extra; "" is every installation."""


def bounds(extra):
    """Return the lower bound of each requirement of an extra; "" is the package itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lower_bounds = {}
    texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
    for text in texts:
        requirement = Requirement(text)
        lower = [
            specifier.version for specifier in requirement.specifier if specifier.operator == ">="
        ]
        lower_bounds[requirement.name] = Version(lower[0]) if lower else None
    return lower_bounds


@pytest.mark.parametrize(("place", "safe"), SAFE.items(), ids=map(" ".join, SAFE))
def test_lower_bound_excludes_known_faults(place, safe):
    extra, package = place
    version, fault = safe
    bound = bounds(extra)[package]
    assert bound is not None and bound >= Version(version), fault


def test_tested_versions_are_within_the_bounds():
    lines = (ROOT / "launch" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    tested = {
        requirement.name.lower(): Version(next(iter(requirement.specifier)).version)
        for requirement in pinned
    }
    for extra in ("", "search", "postgres", "mcp"):
        for name, bound in bounds(extra).items():
            if bound is not None and name.lower() in tested:
                assert tested[name.lower()] >= bound, name
