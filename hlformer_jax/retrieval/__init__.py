"""Retrieval: scores, ranks, recalls, a corpus to search, and evaluation."""
