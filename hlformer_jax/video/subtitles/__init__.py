"""Subtitle files and subtitle tracks of videos as cues.

reader             files and tracks: what is read, and its limits
formats, text      the formats of files, and their markup
charset            the encoding of a file
closed_captions    captions in the pictures of a video (CEA-608)
"""

from hlformer_jax.video.subtitles.reader import SUFFIXES, Subtitles, read_file, read_tracks

__all__ = ["SUFFIXES", "Subtitles", "read_file", "read_tracks"]
