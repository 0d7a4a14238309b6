"""HOVER on any number of devices: the same losses, parameters, ranks."""

import json
import sys

import numpy as np
import processes
import pytest

# In a process of its own: the number of virtual devices is set before JAX starts.
PROGRAM = """
import json, sys
import jax
import numpy as np



from hlformer_jax.config import debug, default
from hlformer_jax.data.schedule import Schedule
from hlformer_jax.parallel import devices
from hlformer_jax.training import families, step, train_state

config = debug(default("hover"))
config.data.update(data_dir=sys.argv[1], visual_dim=6, text_dim=5, synthetic_videos=(9, 3, 5))
config.data.update(max_frames=64, max_clips=1)
config.model.update(hidden_size=6, hyperbolic_dim=4, text_encoder="mean", lift="radius")
config.train.update(batch_size=7)
config.optim.warmup = 0.0
found = []
for number in (1, 8):
    mesh = devices.mesh(jax.devices()[:number])
    family = families.build(config, mesh)
    feed = family.feed(Schedule(family.num_examples, 7, 0).groups(1, 2)[:2])
    optimiser = family.optimiser(10)
    state = devices.replicate(mesh, train_state.init_state(family.init_params(), optimiser))
    loss = family.loss(3)
    steps = step.compile_steps(loss, optimiser, family.project, feed, state, config).steps
    losses = []
    for chunk in feed.chunks():
        state, records = steps(state, chunk)
        losses += np.asarray(records["loss"])[: chunk.num_steps].tolist()
    norms = [float(np.linalg.norm(x)) for x in jax.tree.leaves(jax.device_get(state.params))]
    found.append({"losses": losses, "norms": norms, "metrics": family.test(state.params).metrics})
print("RESULT", json.dumps(found))
"""


@pytest.mark.slow
def test_losses_parameters_and_ranks_do_not_depend_on_the_devices(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = processes.finish(command, env=processes.environment(devices=8), timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    one, several = json.loads(line.removeprefix("RESULT "))
    # Parameters and losses are float32: sums in another order, through four steps.
    np.testing.assert_allclose(several["losses"], one["losses"], rtol=1e-4)
    np.testing.assert_allclose(several["norms"], one["norms"], rtol=1e-4)
    assert several["metrics"] == pytest.approx(one["metrics"], rel=1e-3, abs=1e-3)
