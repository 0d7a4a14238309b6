"""Prepared sets: array_record files that TFDS wrote, one record a video, made from any source.

preparation  `prepare`: finds the set of a source, or makes it, complete or not at all
records      what one video becomes
checks       which splits and values are refused
builder      writes the records; alone in knowing TFDS
reader       `Prepared` and `PreparedVideos`: the set as it is read, by index
"""
