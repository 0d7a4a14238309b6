"""Names of other programs for fields, and suggestions for a wrong name."""

from collections.abc import Collection, Mapping

from hlformer_jax.text import suggestion

COMMON_NAMES: Mapping[str, str] = {
    "lr": "optim.learning_rate",
    "rate": "optim.learning_rate",
    "wd": "optim.weight_decay",
    "batch": "train.batch_size",
    "bs": "train.batch_size",
    "batchsize": "train.batch_size",
    "epoch": "train.epochs",
    "num_epochs": "train.epochs",
    "n_epochs": "train.epochs",
    "max_epochs": "train.epochs",
    "early_stopping": "train.patience",
    "grad_accum": "train.encode_parts",
    "gradient_accumulation": "train.encode_parts",
    "accumulate_grad_batches": "train.encode_parts",
    "num_heads": "model.num_heads",
    "heads": "model.num_heads",
    "n_heads": "model.num_heads",
    "hidden_dim": "model.hidden_size",
    "dim": "model.hidden_size",
    "d_model": "model.hidden_size",
    "embed_dim": "model.hidden_size",
    "drop": "model.dropout",
    "dropout_rate": "model.dropout",
    "tau": "model.temperature",
    "num_blocks": "model.euclidean_blocks",
    "layers": "model.euclidean_blocks",
    "num_layers": "model.euclidean_blocks",
    "dataset": "data.collection",
    "data_path": "data.manual_dir",
    "data_root": "data.manual_dir",
    "root": "data.manual_dir",
    "features": "data.feature",
    "random_seed": "seed",
    "amp": "dtype",
    "fp16": "dtype",
    "bf16": "dtype",
    "mixed_precision": "dtype",
    "metric": "eval.select",
    "monitor": "eval.select",
}
"""Fields by their common names in other programs."""

ENVIRONMENT: Mapping[str, str] = {
    **dict.fromkeys(
        ("num_devices", "devices", "num_gpus", "n_gpus", "gpus", "gpu", "gpu_ids", "device"),
        "a run uses all visible devices: choose GPUs with the environment variable"
        " CUDA_VISIBLE_DEVICES",
    ),
    **dict.fromkeys(
        ("num_workers", "workers", "n_workers"), "the data needs no workers: leave it out"
    ),
    **dict.fromkeys(
        ("workdir", "output_dir", "out_dir", "save_dir", "log_dir", "exp_dir"),
        "the directory of a run is `workdir`",
    ),
    **dict.fromkeys(
        ("resume", "resume_from"), "a run resumes when the same command is given again"
    ),
    **dict.fromkeys(
        ("checkpoint", "ckpt", "pretrained", "init"),
        "give `init` for the parameters of another run, `checkpoint` for a checkpoint to evaluate",
    ),
}
"""Advice about settings that are fields in other programs but not here, by their common names."""


def field_suggestion(name: str, fields: Collection[str]) -> str:
    """Return the end of an error about an unknown field: "; did you mean …?", advice, or "".

    Args:
      name: full name of the unknown field, such as "optim.lr".
      fields: full names of the existing fields.
    """
    section, _, key = name.rpartition(".")
    if key in ENVIRONMENT:
        return f"; {ENVIRONMENT[key]}"
    matches = [field for field in fields if field.rpartition(".")[2] == key]
    if key in COMMON_NAMES and COMMON_NAMES[key] in fields:
        matches.insert(0, COMMON_NAMES[key])
    if matches:
        return f"; did you mean config.{matches[0]}?"
    siblings = [field for field in fields if field.rpartition(".")[0] == section]
    return suggestion(name, siblings) or suggestion(name, fields)
