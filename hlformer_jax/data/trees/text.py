"""The text of a composed action: the sentences of its moments, one after another."""

from hlformer_jax.data.trees.moment import AnnotatedMoment
from hlformer_jax.data.trees.tree import Tree

_BETWEEN_WORDS = (" a ", " the ", " an ", " both ", " is ", " are ")
_ANYWHERE = ("A ", "The ", "An ", "Both", "Is", "Are")

PARENT_TEXTS = ("released", "joined")
"""How a parent's text is made; see `texts`."""

CLEANED = ("activitynet",)
"""Collections whose published texts lost their articles; the sentences there begin with a blank."""


def texts(
    tree: Tree, moments: tuple[AnnotatedMoment, ...], form: str = "released", collection: str = ""
) -> list[str]:
    """The text of every node of a tree.

    Args:
      tree: the tree.
      moments: those of its video.
      form: "released": the texts of the children one after another, so that a leaf which two of
        them share stands there twice; of `CLEANED` collections without a blank between, then by
        `without_articles`. "joined": the sentences of the moments, each once, a blank between.
      collection: what the moments are of.

    Returns:
      The texts; of a leaf its sentence, and where a node has a text of its own, that. White space
      becomes single blanks, at the very end.

    Raises:
      ValueError: when there is no such form.
    """
    if form not in PARENT_TEXTS:
        raise ValueError(f"the text of a parent is {' or '.join(PARENT_TEXTS)}, not {form!r}")
    cleaned = collection in CLEANED
    raw: list[str] = []
    for node in tree.nodes:
        own = [moments[k].text for k in node.moments]
        if node.text:
            text = node.text
        elif len(node.moments) == 1 and not node.children:
            text = own[0]
        elif form == "joined":
            text = " ".join(sentence.strip() for sentence in own)
        else:
            # A chain tells all its moments, and only one of them is its child.
            chain = len(node.children) < 2
            parts = own if chain else [raw[child] for child in node.children]
            text = without_articles("".join(parts)) if cleaned else " ".join(parts)
        raw.append(text)
    return [" ".join(text.split()) for text in raw]


def without_articles(text: str) -> str:
    """Deletes articles and some verbs as the published texts of ActivityNet Captions lost them.

    It shortens long texts and, as released, also cuts into words: "Island" becomes "land".

    Args:
      text: the text.

    Returns:
      The text without any of " a ", " the ", " an ", " both ", " is ", " are " (a blank is left),
      nor of "A ", "The ", "An ", "Both", "Is", "Are", wherever they stood; each is deleted until
      none is left, in this order.
    """
    for words, left in ((_BETWEEN_WORDS, " "), (_ANYWHERE, "")):
        for word in words:
            while word in text:
                text = text.replace(word, left)
    return text
