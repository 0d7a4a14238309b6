"""Training losses as pure functions of arrays.

    objective      a loss is a weighted sum of terms: the numbers and options of `config.loss`
    ranking        triplet and contrastive losses of the scores of captions and videos
    embeddings     diversity, optimal matching and partial order of captions, clips and videos
    distillation   what a student learns of a teacher's cosines (DL-DKD)
    trees          alignment, tree, chain and order of action trees (HOVER)

Padding never reaches a value or a gradient, whatever it holds.
"""
