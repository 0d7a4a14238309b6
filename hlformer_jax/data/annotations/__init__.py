"""Annotations: captions, moments with their times, and the spans for evaluations.

    parsing      text and JSON, read strictly
    moments      files of moments
    captions     caption lists
    published    the published annotations of three data sets
    spans        the annotated moments of captions in an evaluation

docs/data.md has the formats.
"""
