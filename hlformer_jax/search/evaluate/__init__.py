"""Evaluation of the search on captions, and calibration of the match threshold.

captions     files of captions
metrics      recalls and moments of each ranker, and results for each kind of caption
threshold    scores of present and absent things, and thresholds between them
features     data sets of an index and captions, to train a model on
"""
