"""The index of an archive: its records, embeddings and the matrices that are searched."""
