"""Data: the released layout, its prepared form, transforms, and a synthetic corpus."""
