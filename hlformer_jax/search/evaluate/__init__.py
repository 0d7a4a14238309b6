"""Evaluation of the search on captions, and calibration of the match threshold.

captions     files of captions
metrics      recalls and moments of each ranker, and results for each kind of caption
threshold    match thresholds for a rate of false alarms, and their error rates
features     features of an index and captions, on which a model can be trained
"""
