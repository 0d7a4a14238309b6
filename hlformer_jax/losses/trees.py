"""Losses of HOVER: alignment, tree, chain and order (eq. 5 to 8).

Logits are s times a cosine, or s times a negative distance. CE, the cross-entropy, is the mean over
rows of −log of the diagonal's probability, in a softmax over the columns. Padded points have to be
at the origin; their rows and columns are masked.

The chain and the order loss are hinges h(z) = max(z, 0). They want a number a to be below another
number b by the margin ε:

    corrected   h(a − b + ε)     0 once a is below b by the margin
    printed    −h(b − a + ε)     falls without bound as an ordered pair moves apart, and has no
                                 gradient for a pair that is out of order by more than ε
    released   as printed; the tree and the chain have other edges, see `training.hover`
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from hlformer_jax.losses.retrieval import masked_logsumexp, masked_mean
from hlformer_jax.ops.arguments import as_indices, check_shape
from hlformer_jax.typing import Array

FORMS = ("corrected", "printed", "released")
"""Forms of the hinge, see the module."""


def alignment(logits: Float[Array, "B B"], mask: Bool[Array, " B"]) -> Float[Array, ""]:
    """Symmetric contrastive loss of videos and texts, ½ (CE(ℓ(v, t)) + CE(ℓ(t, v))).

    Args:
      logits: scaled similarities of videos (rows) and texts (columns); the video and the text of a
        node have the same index.
      mask: True for real rows and columns.

    Returns:
      The loss, 0 for a single row.

    References:
      HOVER, eq. 5, with the scale of the released code.
    """
    return tree((logits, logits.T), mask)


def tree(
    logits: tuple[Float[Array, "B B"], Float[Array, "B B"]],
    mask: Bool[Array, " B"],
    related: Bool[Array, "B B"] | None = None,
    reduction: str = "mean",
) -> Float[Array, ""]:
    """Contrastive loss of parents and one child of each, for example the left children.

    ½ (CE(ℓ(v_parent, t_child)) + CE(ℓ(t_parent, v_child))): a parent should be nearer to its child
    of the other modality than to the children of other parents.

    Args:
      logits: two matrices of scaled similarities, with a row per parent and a column per child: the
        parents' videos with the children's texts, and the parents' texts with the children's
        videos. Parent and child of a subtree have the same index.
      mask: True for real rows and columns.
      related: True at (i, j) excludes child j from the negatives of parent i; None excludes none.
      reduction: "mean" or "sum" over rows.

    Returns:
      The loss; 0 for a single row.

    Raises:
      ValueError: for logits of another shape than [B, B].

    References:
      HOVER, eq. 6, with the positive in the denominator and a mean over parents.
    """
    mask = jnp.asarray(mask)
    for matrix in logits:
        check_shape("logits", matrix, (*mask.shape, *mask.shape))
    allowed = _softmax_mask(mask, related)
    return jnp.asarray(sum(_cross_entropy(x, allowed, mask, reduction) for x in logits) / 2)


def hinge(
    video: Float[Array, " U"],
    text: Float[Array, " U"],
    low: Int[Array, " R"],
    high: Int[Array, " R"],
    mask: Bool[Array, " R"],
    margin: float | Float[Array, ""],
    form: str = "corrected",
) -> Float[Array, ""]:
    """Penalise a node whose number is not lower than another node's in the other modality.

    For the chain loss the numbers are norms: a parent should be nearer to the origin than its
    child. For the order loss they are cosines with the direction of time (`models.hover.angles`):
    the later node should have the lower cosine.

    Args:
      video: a number for the video of each node.
      text: a number for the text of each node.
      low: for every pair, the row of the node whose number should be lower.
      high: for every pair, the row of the other node.
      mask: True for real pairs.
      margin: ε₁ for the chain, ε₂ for the order.
      form: a name of `FORMS`.

    Returns:
      The mean over pairs, averaged over both choices of modalities; 0 without pairs.

    Raises:
      ValueError: for an unknown form, arrays of different lengths and, outside of `jax.jit`, for a
        row of a real pair that does not exist.

    References:
      HOVER, eq. 7 and 8.
    """
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    video, text, mask = jnp.asarray(video), jnp.asarray(text), jnp.asarray(mask)
    check_shape("text", text, video.shape)
    low, high = (
        as_indices(name, rows, len(video), mask) for name, rows in (("low", low), ("high", high))
    )
    check_shape("low", low, mask.shape)
    check_shape("high", high, mask.shape)
    total = jnp.zeros((), video.dtype)
    for a, b in ((video, text), (text, video)):
        ahead = b[high] - a[low]
        loss = jax.nn.relu(margin - ahead) if form == "corrected" else -jax.nn.relu(margin + ahead)
        total = total + masked_mean(loss, mask) / 2
    return total


def entailment(
    outside: tuple[Float[Array, " R"], Float[Array, " R"]], mask: Bool[Array, " R"]
) -> Float[Array, ""]:
    """Penalise a child outside of the entailment cone of its parent in the other modality.

    This is the alternative to the chain's hinge (`config.loss.chain_form`): it orders directions as
    well as norms. It has no margin. The aperture of a cone, which `config.loss.min_radius` sets,
    limits the angle between child and parent.

    Args:
      outside: two angles in radians for every edge, see `models.hover.Space.outside_cone`: of the
        child's text outside of the cone of the parent's video, and of the child's video outside of
        the cone of the parent's text.
      mask: True for real edges.

    Returns:
      The mean over edges, averaged over both choices of modalities; 0 without edges.

    Raises:
      ValueError: for angles of another number than the edges.

    References:
      HLFormer, eq. 20, over the edges of HOVER, eq. 7.
    """
    mask = jnp.asarray(mask)
    for angles in outside:
        check_shape("outside", angles, mask.shape)
    return jnp.asarray(sum(masked_mean(angles, mask) for angles in outside) / 2)


def _softmax_mask(mask: Array, related: Array | None) -> jax.Array:
    """Return True for the columns in each row's softmax: real, and unrelated or the diagonal."""
    diagonal = jnp.eye(len(mask), dtype=bool)
    allowed = jnp.broadcast_to(mask[None], diagonal.shape)
    return allowed if related is None else allowed & (diagonal | ~jnp.asarray(related))


def _cross_entropy(logits: Array, allowed: Array, mask: Array, reduction: str) -> Array:
    values = masked_logsumexp(logits, allowed, axis=-1) - jnp.diagonal(logits)
    if reduction == "sum":
        return jnp.sum(jnp.where(mask, values, jnp.zeros((), values.dtype)))
    return masked_mean(values, mask)
