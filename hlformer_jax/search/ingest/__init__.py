"""Indexing of videos: finding, decoding and encoding them, once or whenever they change."""
