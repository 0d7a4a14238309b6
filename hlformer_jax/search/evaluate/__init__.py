"""Measurements of an archive's search on captions, and match thresholds calibrated with them.

captions     files of captions
metrics      recalls and moments of each ranker, and results by kind of caption
threshold    how far scores separate present from absent things
"""
