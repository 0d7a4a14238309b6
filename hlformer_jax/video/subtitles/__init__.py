"""Reading of cues from subtitle files and from the subtitle tracks of videos.

reader             reading of files and tracks, with limits
formats, ttml      formats of text files
ebu_stl            EBU STL files
text               markup and repetitions in texts
charset            detection of a file's text encoding
closed_captions    captions in the pictures of a video and in Scenarist files (CEA-608)
"""

from hlformer_jax.video.subtitles.reader import SUFFIXES, Subtitles, read_file, read_tracks

__all__ = ["SUFFIXES", "Subtitles", "read_file", "read_tracks"]
