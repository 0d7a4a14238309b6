"""Sources of a data set: released features, extracted ones, and synthetic corpora."""
