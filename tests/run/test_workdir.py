"""The directory of a run: it belongs to one configuration and one data source."""

import json

import pytest
import runs

from hlformer_jax.run import workdir


@pytest.fixture
def started(tmp_path):
    """The directory of a run that has a checkpoint."""
    workdir.claim(tmp_path, runs.tree(), "data").close()
    (tmp_path / "checkpoints" / "newest" / "3").mkdir(parents=True)
    return tmp_path


def test_the_same_run_resumes(started):
    workdir.claim(started, runs.tree(), "data").close()
    workdir.check(started, runs.tree())


@pytest.mark.parametrize(
    ("options", "fingerprint", "message"),
    [
        ({"optim.learning_rate": 0.5}, "data", r"config\.optim\.learning_rate \(0\.1 .*0\.5 now"),
        ({"train.encode_parts": 2}, "data", r"config\.train\.encode_parts \(1 there, 2 now\)"),
        ({"data.synthetic_videos": (11, 4, 5)}, "data", "synthetic_videos"),
        ({}, "other data", "the data's files are others"),
    ],
    ids=str,
)
def test_another_configuration_or_data_is_refused_with_the_difference_named(
    started, options, fingerprint, message
):
    with pytest.raises(workdir.WorkdirError, match=message):
        workdir.claim(started, runs.tree(**options), fingerprint)
    # Processes beside the one that writes there find out too.
    with pytest.raises(workdir.WorkdirError, match=message):
        workdir.claim(started, runs.tree(**options), fingerprint, writes=False)


def test_a_field_that_earlier_versions_recorded_does_not_matter(started):
    path = started / "config.json"
    content = json.loads(path.read_text())
    content["config"]["kernels"] = "xla"
    path.write_text(json.dumps(content))
    workdir.claim(started, runs.tree(), "data").close()


@pytest.mark.parametrize("field", workdir.MOVABLE)
def test_where_things_lie_and_fit_may_change(started, field):
    value = {"data.manual_dir": "a", "data.data_dir": "b", "data.resident": "never"}.get(field, 7.0)
    workdir.claim(started, runs.tree(**{field: value}), "data").close()


def test_a_directory_without_a_checkpoint_is_anyones(tmp_path):
    workdir.claim(tmp_path, runs.tree(), "data").close()
    workdir.claim(tmp_path, runs.tree(**{"optim.learning_rate": 0.5}), "data").close()
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["config"]["optim"]["learning_rate"] == 0.5


def test_results_without_checkpoints_still_say_whose_they_are(tmp_path):
    workdir.claim(tmp_path, runs.tree(), "data").close()
    (tmp_path / "test_metrics.json").write_text("{}")
    workdir.check(tmp_path, runs.tree())
    with pytest.raises(workdir.WorkdirError, match=r"optim\.learning_rate .*0\.5 now"):
        workdir.check(tmp_path, runs.tree(**{"optim.learning_rate": 0.5}))


def test_a_run_that_is_under_way_is_refused(tmp_path):
    with workdir.claim(tmp_path, runs.tree(), "data"):
        with pytest.raises(workdir.OccupiedError, match="a run is under way in"):
            workdir.claim(tmp_path, runs.tree(), "data")
        workdir.claim(tmp_path, runs.tree(), "data", writes=False)  # another process of the run
    workdir.claim(tmp_path, runs.tree(), "data").close()


def test_results_on_other_data_are_not_mixed(started, tmp_path_factory):
    workdir.check_data(started, "data")
    workdir.check_data(tmp_path_factory.mktemp("new"), "other data")
    with pytest.raises(workdir.WorkdirError, match="holds a run on other data"):
        workdir.check_data(started, "other data")


def test_a_record_that_is_no_json_is_refused(started):
    (started / "config.json").write_text("{")
    with pytest.raises(workdir.WorkdirError, match=r"config\.json is not JSON"):
        workdir.check(started, runs.tree())
