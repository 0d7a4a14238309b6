"""Queries, and the library that answers them."""
