"""Sweeps: variants of a configuration, each trained with several seeds, and their table.

__main__      the command
runs          trains the runs one after another; each writes result.json or failure.json
results       means, spreads and ranks of all variants over the finished runs
tables        their views: table.json, .md, .csv, the plot, the print
comparison    tells which differences are real, by a paired bootstrap over queries

This module defines a sweep and expands it to its runs. A file in ``configs/sweeps/`` calls
`define`, whose arguments are the fields of the sweep's configuration. `base` and `bases` are
complete configurations. If the command line sets a field of `base`
(`--config.base.train.epochs=3`), the field changes in all bases. The additional field `defined` has
the fields of `base` as the file defines them, by their full names; changes are found by comparison
with it, and by `mark_given`.

Nothing here loads JAX, so that a configuration file loads quickly.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError, check, flat, load, locate
from hlformer_jax.config.names import field_suggestion
from hlformer_jax.text import suggestion

METRICS = ("R@1", "R@5", "R@10", "R@100", "SumR")
"""Test metrics that papers on partially relevant video retrieval publish."""

PUBLISHED_ON = {
    "anet": "ActivityNet Captions, I3D and RoBERTa",
    "charades": "Charades-STA, I3D and RoBERTa",
    "tvr": "TVR, ResNet, I3D and RoBERTa",
}
"""Data sets and features of HLFormer's and GMMFormer v2's tables, by name in `config.DATA_SETS`."""


class Run(NamedTuple):
    """One training run of a sweep.

    Attributes:
      variant: name of the variant.
      seed: seed of the run.
      config: complete configuration of the run.
      directory: directory of the run, relative to the directory of the sweep.
      corpus: name of the corpus in the sweep; "" for a sweep without corpora.
      timed: whether the cost of a query is measured.
    """

    variant: str
    seed: int
    config: ConfigDict
    directory: Path
    corpus: str = ""
    timed: bool = False

    @property
    def title(self) -> str:
        """The name of the run in reports."""
        corpus = f", corpus {self.corpus}" if self.corpus else ""
        return f"{self.variant}{corpus}, seed {self.seed}"


def define(
    file: str,
    name: str,
    *,
    title: str,
    base: str,
    variants: Mapping[str, Mapping[str, Any] | ConfigDict],
    published: Mapping[str, Mapping[str, float]] | None = None,
    cited: Mapping[str, Mapping[str, float]] | None = None,
    corrections: Mapping[str, Mapping[str, tuple[float, str]]] | None = None,
    published_on: str = "",
    published_costs: Mapping[str, Mapping[str, float]] | None = None,
    notes: Sequence[str] = (),
    seeds: Sequence[int] = (0, 1, 2),
    quantity: str = "",
    values: Mapping[str, float] | None = None,
    series: Mapping[str, str] | None = None,
    bases: Mapping[str, str] | None = None,
    metrics: Sequence[str] = METRICS,
    settings: Mapping[str, Any] | None = None,
    corpora: Mapping[str, str] | None = None,
    pairs: Sequence[tuple[str, str]] = (),
    relative: Mapping[str, str] | None = None,
    timed: bool = False,
) -> ConfigDict:
    """Return the configuration of a sweep.

    Args:
      file: path of the file that defines the sweep (`__file__`); other paths are relative to it.
      name: "" for the sweep, or "debug" for a rehearsal: bases that run in seconds, for one epoch
        and with one seed.
      title: title of the table and the plot, without a data set; the data set of the runs is added.
      base: configuration file of the base, relative to `file`, or the name of a file of the package
        ("tvr"); a data set may follow after a colon.
      variants: for each variant the fields in which it differs from its base, nested like the
        configuration; "base": NAME selects one of `bases` instead of `base`.
      published: for each variant the published figures exactly as they are printed, by metric.
        "Δ METRIC", and "PART/Δ METRIC" for a part of the test split, is a printed change in
        percent.
      cited: printed figures of methods that are not trained here; each method is a row.
      corrections: for variants or methods, by metric, the intended figure and the reason, if a
        printed figure contradicts its own table; shown in a further column, with a footnote.
      published_on: data set and features of the published figures.
      published_costs: for variants the printed costs, by the names of `results.COSTS`, in
        parameters, operations, seconds and bytes.
      notes: remarks below the table.
      seeds: seeds with which each variant is trained.
      quantity: name of the swept quantity, the axis of the plot; "" for variants that are
        categories.
      values: for variants the value of the quantity. math.inf is drawn at the right end; a variant
        without a value is drawn as a horizontal line.
      series: for variants the name of their line in the plot; by default there is one line.
      bases: further configuration files by name, written like `base`.
      metrics: test metrics that the tables show. Metrics of a part of the test split (such as
        "leaves=2/t2v/MRR") have a separate table. The plot shows the last metric.
      settings: fields to change in all bases, nested.
      corpora: folders below `data.manual_dir` by name; every variant is trained on each of them.
        Without any, the data of the configuration is used.
      pairs: pairs of variants to compare query by query, see `comparison`.
      relative: for variants the reference variant of the last metric's change in percent.
      timed: whether to measure the cost of a single query in a corpus of 2,500 videos.

    Raises:
      ConfigError: for another `name`, and for settings that name an unknown field.
    """
    if name not in ("", "debug"):
        raise ConfigError(f"variant {name!r} of this sweep is unknown: the only variant is 'debug'")
    folder = Path(file).parent
    first = _load(folder, base, name, settings or {})
    further = {
        key: _load(folder, path, name, settings or {}) for key, path in (bases or {}).items()
    }
    content = {
        "title": f"{title} (debug)" if name else title,
        "base": first,
        "variants": {key: dict(fields) for key, fields in variants.items()},
        "published": {key: dict(x) for key, x in (published or {}).items()},
        "cited": {key: dict(x) for key, x in (cited or {}).items()},
        "corrections": {key: dict(x) for key, x in (corrections or {}).items()},
        "published_on": published_on,
        "published_costs": {key: dict(x) for key, x in (published_costs or {}).items()},
        "notes": tuple(notes),
        "seeds": tuple(seeds)[: 1 if name else None],
        "quantity": quantity,
        "values": dict(values or {}),
        "series": dict(series or {}),
        "bases": further,
        "metrics": tuple(metrics),
        "corpora": dict(corpora or {}),
        "pairs": tuple(pairs),
        "relative": dict(relative or {}),
        "timed": timed,
        "defined": flat(first),
    }
    # Dictionaries are not converted: a variant's name may contain a dot, a field's name may not.
    return ConfigDict(content, convert_dict=False).lock()


def metrics(*figures: float) -> dict[str, float]:
    """Return published figures by metric.

    Args:
      *figures: one figure for each of `METRICS`, or SumR alone.
    """
    names = METRICS[-1:] if len(figures) == 1 else METRICS
    return dict(zip(names, figures, strict=True))


def change_of(metric: str) -> str:
    """Return the name of the change of a metric: "leaves=2/Δ MRR" of "leaves=2/MRR"."""
    part, slash, name = metric.partition("/") if "=" in metric else ("", "", metric)
    return f"{part}{slash}Δ {name}"


def hover_base(name: str) -> tuple[str, str]:
    """Return the base and the size of a sweep of HOVER from the name after the colon of its file.

    Args:
      name: "" or "debug" for the released features of ActivityNet; or a folder with features of
        your own videos, optionally followed by ",debug".

    Returns:
      The configuration file with its data set, and "debug" or "".
    """
    if name in ("", "debug"):
        return "../hover.py:activitynet", name
    folder, _, size = name.partition(",")
    return f"../hover_own.py:{folder}", size


def mark_given(sweep: ConfigDict, names: Iterable[str]) -> None:
    """Count fields of `base` as changed if another base has another value, for `expand`.

    Without it, a field that is set to the value that `base` already has changes no other base.

    Args:
      sweep: the sweep; the fields are removed from its `defined`.
      names: names of the fields that the command line sets, such as "base.train.epochs".
    """
    bases = [flat(base) for base in (sweep.base, *sweep.bases.values())]
    for name in names:
        field = name.removeprefix("base.")
        if len({repr(base.get(field)) for base in bases}) > 1:
            sweep.defined.pop(field, None)


def expand(sweep: ConfigDict) -> list[Run]:
    """Return the runs of a sweep: all variants on each corpus with the first seed, then the next.

    Raises:
      ConfigError: if the sweep is empty, names an unknown variant, field or metric, would put two
        runs into one directory, or has a variant with an invalid configuration.
    """
    _check_names(sweep)
    changed = changed_fields(sweep)
    if "seed" in changed:
        raise ConfigError("a sweep sets the seed of its runs: give `config.seeds`, not base.seed")
    variants = {name: _variant(sweep, name, changed) for name in sweep.variants}
    runs = []
    for seed, corpus in itertools.product(sweep.seeds, sweep.corpora or [""]):
        for name, variant in variants.items():
            config = variant.copy_and_resolve_references()
            config.seed = seed
            if corpus:
                config.data.manual_dir = str(Path(config.data.manual_dir, sweep.corpora[corpus]))
            try:
                check(config)
            except ConfigError as error:
                raise ConfigError(f"variant {name!r}: {error}") from None
            directory = Path(_slug(name), _slug(corpus), f"seed{seed}")
            runs.append(Run(name, seed, config, directory, corpus, sweep.timed))
    _check_directories(runs)
    return runs


def choose(runs: Sequence[Run], only: Sequence[str] = (), without: Sequence[str] = ()) -> list[Run]:
    """Return the runs of the variants that two lists of names select.

    Args:
      runs: the runs of a sweep.
      only: names of variants; empty for all of them.
      without: names of variants to leave out.

    Raises:
      ConfigError: if the sweep has no variant of a name, or if no variant is left.
    """
    variants = list(dict.fromkeys(run.variant for run in runs))
    for option, names in (("only", only), ("without", without)):
        for name in names:
            if name not in variants:
                listed = ", ".join(map(repr, variants))
                raise ConfigError(
                    f"`{option}`={name}: the variant is unknown{suggestion(name, variants)}"
                    f" (the variants are {listed})"
                )
    selection = [
        run for run in runs if (not only or run.variant in only) and run.variant not in without
    ]
    if not selection:
        raise ConfigError("`only` and `without` leave no variant to train")
    return selection


def share(runs: Sequence[Run], task: int, tasks: int) -> list[Run]:
    """Return the runs of one of several tasks: every `tasks`-th run, from index `task` on.

    Raises:
      ConfigError: if `task` is not at least 0 and below `tasks`.
    """
    if not 0 <= task < tasks:
        raise ConfigError(f"`task`={task}: it must be at least 0 and below `tasks`, {tasks}")
    return list(runs[task::tasks])


def changed_fields(sweep: ConfigDict) -> dict[str, Any]:
    """Return the fields of the base that the command line changed, by their full names."""
    before = sweep.defined
    return {
        name: value
        for name, value in flat(sweep.base).items()
        if name not in before or value != before[name]
    }


def task_of_array(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the index of this task in a Slurm array, and the number of the array's tasks.

    Outside of an array these are 0 and 1.

    Args:
      environment: the environment variables.

    Raises:
      ConfigError: if the indices of the array are not equally spaced, or the task has several
        processes.
    """
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        raise ConfigError("srun: a sweep runs one process per task: use an array, as launch/ does")
    if "SLURM_ARRAY_TASK_COUNT" not in environment:
        return 0, 1

    def slurm(name: str, default: int) -> int:
        return int(environment.get(f"SLURM_ARRAY_TASK_{name}", default))

    tasks = slurm("COUNT", 1)
    task, rest = divmod(slurm("ID", 0) - slurm("MIN", 0), max(slurm("STEP", 1), 1))
    if rest or not 0 <= task < tasks:
        raise ConfigError("number the tasks of the Slurm array without gaps, for example 0-7")
    return task, tasks


def _load(folder: Path, base: str, name: str, settings: Mapping[str, Any]) -> ConfigDict:
    file, _, data_set = base.partition(":")
    path = _locate_base(folder, file)
    # After a folder of features the separator is a comma, because its name may contain hyphens.
    mark = "," if path.stem.endswith("own") else "-"
    config = load(path, mark.join(filter(None, (data_set, name))))
    _apply(config, settings, "settings")
    if name == "debug":
        config.train.epochs = 1
    return config


def _locate_base(folder: Path, file: str) -> Path:
    """Return the file of a base, relative to the folder of the sweep or else in the package."""
    for path in (folder / file, folder / f"{file}.py"):
        if path.is_file():
            return path
    return locate(file)


def _check_names(sweep: ConfigDict) -> None:
    if not sweep.variants:
        raise ConfigError("the sweep has no variants")
    if not sweep.seeds:
        raise ConfigError("the sweep has no seeds")
    if not all(isinstance(seed, int) for seed in sweep.seeds):
        raise ConfigError(f"config.seeds is {tuple(sweep.seeds)}: seeds must be whole numbers")
    if not sweep.metrics or len(set(sweep.metrics)) < len(sweep.metrics):
        raise ConfigError(
            f"config.metrics is {tuple(sweep.metrics)}: give one or more metrics, each once"
        )
    for field in ("published", "published_costs", "values", "series", "pairs", "relative"):
        names = sweep.relative.items() if field == "relative" else sweep[field]
        flat = field in ("pairs", "relative")
        for name in itertools.chain.from_iterable(names) if flat else names:
            if name not in sweep.variants:
                closest = suggestion(name, sweep.variants)
                raise ConfigError(f"config.{field}: the variant {name!r} is unknown{closest}")
    for name in sweep.cited:
        if name in sweep.variants:
            raise ConfigError(
                f"config.cited: {name!r} is a variant: cite published methods only, and put"
                " figures of a variant into config.published"
            )
    metric_names = [*sweep.metrics, *map(change_of, sweep.metrics)]
    for field in ("published", "cited", "corrections"):
        for name, figures in sweep[field].items():
            for metric in figures:
                if metric not in metric_names:
                    listed = ", ".join(sweep.metrics)
                    raise ConfigError(
                        f"config.{field}, {name!r}: {metric!r} is not a metric: use {listed}"
                    )
    for name, figures in sweep.corrections.items():
        printed = sweep.published.get(name) or sweep.cited.get(name) or {}
        for metric in figures:
            if metric not in printed:
                raise ConfigError(
                    f"config.corrections, {name!r}: there is no published {metric} to correct"
                )
    if bool(sweep.quantity) != bool(sweep["values"]):
        raise ConfigError("config.quantity and config.values go together: give both or neither")


def _check_directories(runs: Sequence[Run]) -> None:
    runs_by_place: dict[str, Run] = {}
    for run in runs:
        # Some file systems ignore case.
        namesake = runs_by_place.setdefault(str(run.directory).casefold(), run)
        if namesake is not run:
            raise ConfigError(
                f"{namesake.title!r} and {run.title!r} would share the directory"
                f" {run.directory}: rename one of them"
            )


def _variant(sweep: ConfigDict, name: str, changed: Mapping[str, Any]) -> ConfigDict:
    overrides = dict(sweep.variants[name])
    where = f"variant {name!r}"
    if not _slug(name):
        raise ConfigError(f"{where}: the name must have a letter or a digit, for its directory")
    base = overrides.pop("base", None)
    if base is None:
        config = sweep.base.copy_and_resolve_references()
    elif base in sweep.bases:
        config = sweep.bases[base].copy_and_resolve_references()
        _apply(config, changed, "`config.base`")
    else:
        raise ConfigError(f"{where}: the base {base!r} is unknown{suggestion(base, sweep.bases)}")
    if "seed" in overrides:
        raise ConfigError(f"{where}: a variant cannot set the seed: set config.seeds of the sweep")
    _apply(config, overrides, where)
    return config


def _apply(config: ConfigDict, fields: Mapping[str, Any], where: str) -> None:
    """Set fields of a configuration, which are nested or have their full names.

    Raises:
      ConfigError: if a field is unknown or has a value of another type; begins with `where`.
    """
    present = flat(config)
    for name, value in flat(fields).items():
        if any(field.startswith(f"{name}.") for field in present):
            if isinstance(value, Mapping | ConfigDict):  # an empty section
                continue
            raise ConfigError(f"{where}: config.{name} is a section, but {value!r} is not")
        if outer := next((field for field in present if name.startswith(f"{field}.")), ""):
            raise ConfigError(f"{where}: config.{outer} is a field, not a section")
        if name not in present:
            closest = field_suggestion(name, present)
            raise ConfigError(f"{where}: the field config.{name} is unknown{closest}")
        try:
            config.update_from_flattened_dict({name: value})
        except TypeError:
            kind = type(present[name]).__name__
            raise ConfigError(f"{where}: config.{name} is {value!r}: it must be a {kind}") from None


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+=-]+", "-", name).strip("-.")
