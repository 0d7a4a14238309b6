"""Errors of requests, each with a code that the page translates.

A response contains the code, the values of its sentence and the English sentence. The page finds
its own text by the code, in the entry `refused.CODE` of static/texts.js. Other clients show the
English sentence.
"""

from collections.abc import Mapping

from starlette.exceptions import HTTPException

REFUSALS = {
    "busy.searches": (503, "too many searches are waiting: try again in a moment"),
    "busy.thumbnails": (503, "too many thumbnails are waiting: try again in a moment"),
    "busy.cuts": (503, "too many cuts are waiting: try again in a moment"),
    "folder.unknown": (404, "this index has no added folder of this name"),
    "index.missing": (
        503,
        "the index {index} is no longer there: it was deleted or moved; move it back, or start the"
        " server with its new path",
    ),
    "job.running": (
        409,
        "another change of the index is running: wait until it ends, or stop it",
    ),
    "manage": (403, "this server does not allow changes of the index: start it with --manage"),
    "path.relative": (400, "path: give an absolute path, such as /home/ann/Videos"),
    "picture.large": (413, "the picture is larger than {size} MiB: send a smaller one"),
    "server": (500, "the server failed ({error}): see its terminal"),
    "token": (
        401,
        "this server needs a token: open the address that it printed, or send"
        " Authorization: Bearer TOKEN",
    ),
    "video.changed": (410, "{video} has changed since it was indexed: index the folder again"),
    "video.forbidden": (403, "cannot read {video}: its permissions forbid it"),
    "video.link": (
        403,
        "{video} is a link out of the indexed folder, which is not followed",
    ),
    "video.missing": (
        410,
        "{video} was deleted or moved since it was indexed: index the folder again",
    ),
    "video.unknown": (404, "this index has no such video: search again"),
    "video.unreadable": (422, "{video} cannot be read ({reason}): check its disk"),
}
"""HTTP status and English sentence of each code; names in braces are replaced by values.

Errors about a field of a query are not in this table: their code is query.FIELD.
"""


class Refusal(HTTPException):
    """A request that is refused for a reason in `REFUSALS`.

    Args:
      code: key of `REFUSALS`.
      headers: further headers of the response.
      values: values for the names in braces of the sentence.

    Attributes:
      code: key of `REFUSALS`.
      values: values for the names in braces of the sentence.
    """

    def __init__(
        self, code: str, headers: Mapping[str, str] | None = None, **values: str | int
    ) -> None:
        status, sentence = REFUSALS[code]
        super().__init__(status, sentence.format(**values), dict(headers) if headers else None)
        self.code, self.values = code, values
