"""The released layout of features on disk."""
