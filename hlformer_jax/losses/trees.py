"""Losses of HOVER: alignment, tree, chain and order (eq. 5 to 8).

Logits are s times a cosine, or s times a distance with the sign changed. A softmax is over the
columns; CE is the mean over rows of the negative logarithm of its probability on the diagonal.
Padded points must have been put to the origin; their rows and columns are masked.

The chain and the order are hinges, h(z) = max(z, 0), of numbers a that should be below b:

    corrected   h(a − b + ε)     0 once a is below b by the margin
    printed    −h(b − a + ε)     rewards a pair in order for ever more distance, and gives one that
                                 is out of order by more than ε no gradient
    released   as printed; of the tree and the chain over other edges, see `training.hover`
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from hlformer_jax.losses.retrieval import masked_mean
from hlformer_jax.typing import Array

FORMS = ("corrected", "printed", "released")


def alignment(logits: Float[Array, "B B"], mask: Bool[Array, " B"]) -> Float[Array, ""]:
    """Symmetric contrastive loss of videos and texts, ½ (CE(ℓ(v, t)) + CE(ℓ(t, v))).

    Args:
      logits: scaled similarities of videos (rows) and texts (columns), those of a node at the
        same place.
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
    """Contrastive loss of parents and their children in one slot.

    ½ (CE(ℓ(v_parent, t_child)) + CE(ℓ(t_parent, v_child))): a parent is to be nearer to its own
    child of the other modality than to the children of other parents.

    Args:
      logits: scaled similarities of parents (rows) and a child of each (columns): of the parents'
        videos and the children's texts, and of the parents' texts and the children's videos.
      mask: True for real rows and columns.
      related: entry (i, j) is True where child j is no negative of parent i; None for none.
      reduction: "mean" or "sum" over rows.

    References:
      HOVER, eq. 6, with the positive in the denominator and a mean over parents.
    """
    allowed = _allowed(mask, related)
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
    """A node has a lower number than another one of the other modality, by a margin.

    Of the chain the numbers are norms: a parent is nearer to the origin than its child. Of the
    order they are cosines with the direction of time (`models.hover.angles`): what is later
    has the lower one.

    Args:
      video: numbers of the nodes' videos.
      text: numbers of their texts.
      low: for every pair the row of the node whose number should be lower.
      high: the row of the other node.
      mask: True for real pairs.
      margin: ε₁ of the chain, ε₂ of the order.
      form: a name of `FORMS`.

    Returns:
      The mean over pairs, half for each choice of the modality; 0 without any.

    References:
      HOVER, eq. 7 and 8.
    """
    if form not in FORMS:
        raise ValueError(f"form {form!r} is unknown: use {', '.join(FORMS)}")
    video, text = jnp.asarray(video), jnp.asarray(text)
    total = jnp.zeros((), video.dtype)
    for a, b in ((video, text), (text, video)):
        ahead = b[high] - a[low]
        loss = jax.nn.relu(margin - ahead) if form == "corrected" else -jax.nn.relu(margin + ahead)
        total = total + masked_mean(loss, jnp.asarray(mask)) / 2
    return total


def entailment(
    outside: tuple[Float[Array, " R"], Float[Array, " R"]], mask: Bool[Array, " R"]
) -> Float[Array, ""]:
    """A child lies in the entailment cone of its parent of the other modality.

    The other form of the chain: it orders directions as well as norms. A cone has no margin; its
    aperture, which `config.loss.min_radius` sets, is what a child may differ by.

    Args:
      outside: for every edge the angle by which the child's text lies outside of the cone of the
        parent's video, and its video outside of that of the parent's text; see
        `models.hover.Space.outside_cone`.
      mask: True for real edges.

    Returns:
      The mean over edges, half for each choice of the modality; 0 without any.

    References:
      HLFormer, eq. 20, over the edges of HOVER, eq. 7.
    """
    return jnp.asarray(sum(masked_mean(angle, jnp.asarray(mask)) for angle in outside) / 2)


def _allowed(mask: Array, related: Array | None) -> jax.Array:
    """Columns of each row's softmax: real ones, without those related but the row's own."""
    mask = jnp.asarray(mask)
    own = jnp.eye(len(mask), dtype=bool)
    allowed = jnp.broadcast_to(mask[None], own.shape)
    return allowed if related is None else allowed & (own | ~jnp.asarray(related))


def _cross_entropy(logits: Array, allowed: Array, mask: Array, reduction: str) -> Array:
    # So low that their probability is 0; finite, also where all are.
    lowest = jnp.asarray(float(jnp.finfo(logits.dtype).min) / 2, logits.dtype)
    total = jax.nn.logsumexp(jnp.where(allowed, logits, lowest), axis=-1)
    values, mask = total - jnp.diagonal(logits), jnp.asarray(mask)
    if reduction == "sum":
        return jnp.sum(jnp.where(mask, values, jnp.zeros((), values.dtype)))
    return masked_mean(values, mask)
