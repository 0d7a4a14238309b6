"""The families by name: each configuration has the one that its model is of."""

import pytest
import runs

from hlformer_jax import parallel
from hlformer_jax.config import families as configured
from hlformer_jax.training import families
from hlformer_jax.training.hover import HOVER
from hlformer_jax.training.prvr import PRVR


def test_what_can_be_configured_can_be_trained():
    assert list(families.FAMILIES) == list(configured.FAMILIES)


@pytest.mark.parametrize(
    ("make", "family"), [(runs.retrieval, PRVR), (runs.hover, HOVER)], ids=["prvr", "hover"]
)
def test_a_configuration_is_of_the_family_of_its_model_and_opens_no_data(tmp_path, make, family):
    found = families.build(make(tmp_path / "data"))
    assert type(found) is family
    assert found.describe()["model.name"] == make(tmp_path / "data").model.name
    assert not list(tmp_path.iterdir())


def test_the_devices_are_those_that_are_given_or_all(tmp_path, monkeypatch):
    given = []
    monkeypatch.setitem(families.FAMILIES, "hover", lambda config, mesh: given.append(mesh))
    mesh = parallel.mesh(parallel.mesh().devices.ravel().tolist()[:1])
    families.build(runs.hover(tmp_path), mesh)
    families.build(runs.hover(tmp_path))
    assert given[0] is mesh and given[1] == parallel.mesh()
