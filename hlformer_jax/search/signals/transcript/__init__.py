"""Transcripts: cues of subtitles, speech recognition and OCR, and their passages."""
