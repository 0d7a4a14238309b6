"""A bank of blocks equals its blocks one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from hlformer_jax.nn.bank import BankOptions, GaussianBank, make_windows
from hlformer_jax.nn.blocks import BlockOptions, EuclideanBlock, LorentzBlock, LorentzOptions
from hlformer_jax.ops import windows


def test_a_bank_equals_its_blocks_one_by_one():
    block, lorentz, widths = BlockOptions(2, 0.0), LorentzOptions(7), (0.0, 2.0)
    bank = GaussianBank(BankOptions(block, lorentz, euclidean_blocks=2, lorentz_blocks=2))
    of_both = make_windows(widths, widths, tiny.FRAMES, "released", jnp.float32)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(tiny.VIDEOS, tiny.FRAMES, 8)).astype(np.float32)
    mask = tiny.batch().videos.frame_mask
    shapes = jax.eval_shape(lambda: bank.init(jax.random.key(0), x, of_both, mask, False))
    draw = lambda p: (0.3 * rng.normal(size=p.shape)).astype(p.dtype)
    params = jax.tree.map(draw, shapes)["params"]
    # Scales are to divide by.
    params["lorentz"]["attention"]["scale"] = np.asarray([1.5, 2.5], np.float32)
    outputs = jax.jit(lambda p: bank.apply({"params": p}, x, of_both, mask, False))(params)
    assert outputs.shape == (4, *x.shape)
    log_windows = windows.log_attention_windows(widths, tiny.FRAMES)
    one_euclidean = jax.jit(lambda p, w: EuclideanBlock(block).apply(p, x, x, w, mask, False))
    one_lorentzian = jax.jit(lambda p, w: LorentzBlock(block, lorentz).apply(p, x, w, mask, False))
    for k in range(2):
        own = jax.tree.map(lambda p, k=k: p[k], params)
        euclidean = one_euclidean({"params": own["euclidean"]}, jnp.exp(log_windows[k]))
        lorentzian = one_lorentzian({"params": own["lorentz"]}, log_windows[k])
        np.testing.assert_allclose(outputs[k], euclidean, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(outputs[2 + k], lorentzian, rtol=1e-5, atol=1e-5)
        assert np.abs(outputs[k] - outputs[2 + k]).max() > 0.01
    assert np.abs(outputs[0] - outputs[1]).max() > 0.01
