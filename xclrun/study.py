"""The Python API: runs, scores, measures and predictions as DataFrames.

    import xclrun
    study = xclrun.load("outputs")
    study.measures(measure="F", order="mean")

All values equal those of ``xclrun report --from runs``. Scores and measures are fractions.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.analysis.aggregate import COLUMNS, summarise
from xclrun.analysis.fewshot.scores import few_shot_scores, is_few_shot
from xclrun.analysis.filters import filtered
from xclrun.analysis.grouping import strategy_labels
from xclrun.analysis.record import RunRecord
from xclrun.analysis.records import read_gradients, read_predictions, read_records
from xclrun.analysis.reference import References
from xclrun.config.files import default_outputs
from xclrun.core.errors import RunError, UsageError, did_you_mean
from xclrun.core.names import matching
from xclrun.core.task import BY_SHORT, select_metrics
from xclrun.store.rundir import UNREADABLE_RUN, RunDirectory
from xclrun.store.sweeps import sweeps

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from xclrun.report.part import Plot


class Study:
    """The runs under an outputs directory.

    Keyword arguments of its methods are filters: ``column=value``, or ``column=[values]``. Any other keyword is a
    config key and selects runs, like ``report --filter``. Pass keys with dots as ``**{"trainer.epochs": 5}``.

    Attributes:
        outputs: the directory set by ``paths.outputs``.
        records: runs of any status; measures and figures use finished runs only.
    """

    def __init__(self, outputs: Path, records: Sequence[RunRecord]) -> None:
        self.outputs = outputs
        self.records = list({record.run_id: record for record in records}.values())

    @classmethod
    def read(cls, outputs: str | Path | None = None, metrics: Iterable[str] = ()) -> Study:
        """Read all runs under an outputs directory: see `xclrun.load`."""
        select_metrics(metrics, "metrics")
        folder = Path(outputs or default_outputs()).expanduser()
        if not folder.is_dir():
            raise UsageError(f"{folder}: directory not found; pass the directory set by paths.outputs")
        records = read_records(folder, _warn)
        if not records:
            raise UsageError(f"{folder}: no readable runs; create some, for example: xclrun strategy=naive,er -m")
        return cls(folder, records)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        finished = sum(record.finished for record in self.records)
        lines = [f"Study of {self.outputs}: {len(self)} runs, {finished} finished"]
        for name in ("dataset", "model", "strategy", "order", "seed"):
            values = list(dict.fromkeys(str(getattr(record, name)) for record in self.records))
            more = f", … ({len(values)} in all)" if len(values) > 8 else ""
            lines.append(f"  {name + ':':<10}{', '.join(values[:8])}{more}")
        return "\n".join(lines)

    def where(self, **filters: Any) -> Study:
        """Return the runs with these config values, and their reference runs for transfer.

        ``strategy``, ``order``, ``dataset`` and ``model`` are matched by name.

        Raises:
            UsageError: no run has the key or the value.
        """
        return self._with_references(self._filtered(filters)) if filters else self

    def _filtered(self, filters: Mapping[str, Any]) -> list[RunRecord]:
        return filtered(self.records, {key: set(_texts(value)) for key, value in filters.items()}, "")

    def sweep(self, name: str | None = None) -> Study:
        """Return the runs of a sweep (default: the most recent), and their reference runs.

        Raises:
            UsageError: the sweep does not exist.
        """
        runs = {sweep["name"]: set(sweep["runs"]) for sweep in sweeps(self.outputs, _warn)}
        if not runs:
            raise UsageError(f"{self.outputs}: no sweeps; start one with xclrun … -m")
        if name is not None and name not in runs:
            raise UsageError(f"{self.outputs}: unknown sweep '{name}'; {did_you_mean(name, runs)}")
        run_ids = runs[name or list(runs)[-1]]
        return self._with_references([record for record in self.records if record.run_id in run_ids])

    def _with_references(self, records: list[RunRecord]) -> Study:
        return Study(self.outputs, records + References(self.records).needed_by(records))

    def runs(self, **filters: Any) -> pd.DataFrame:
        """Return a row for each run, indexed by run ID: its settings, status and costs (`COSTS`)."""
        import pandas as pd

        labels = strategy_labels(self.records)
        rows = [
            {
                **_run_columns(record),
                "label": labels[record.run_id],
                "languages": " ".join(record.languages),
                "status": record.status,
                **record.costs,
            }
            for record in self.records
        ]
        return self._where(pd.DataFrame(rows, columns=None if rows else ["run"]), filters).set_index("run")

    def scores(self, **filters: Any) -> pd.DataFrame:
        """Return the score matrices in long form: a row for each measured run, metric, hop and language.

        The column ``learnt`` names the training data of the hop: a language, ``all``, or empty before fine-tuning.
        """
        import pandas as pd

        rows = [
            {
                **_run_columns(record),
                "metric": metric,
                "hop": hop,
                "learnt": record.learnt[hop - 1] if hop else "",
                "language": language,
                "score": matrix[hop, column],
            }
            for record in self.records
            for metric, matrix in record.scores.items()
            for hop in range(record.hops + 1)
            for column, language in enumerate(record.languages)
        ]
        return self._where(pd.DataFrame(rows).dropna(subset="score", ignore_index=True), filters)

    def matrix(self, run: str, metric: str | None = None) -> pd.DataFrame:
        """Return the score matrix R of a run: a row for each hop, from 0, and a column for each language.

        Args:
            run: run ID, or a unique part of it.
            metric: name or short name; None: the first metric of the run.

        Raises:
            UsageError: unknown run or metric.
        """
        import pandas as pd

        record = self._record(run)
        name = BY_SHORT[metric].name if metric in BY_SHORT else metric or next(iter(record.scores))
        if name not in record.scores:
            raise UsageError(f"{record.run_id}: no scores for '{metric}'; {did_you_mean(name, record.scores)}")
        hops = pd.RangeIndex(record.hops + 1, name="hop")
        return pd.DataFrame(record.scores[name], index=hops, columns=pd.Index(record.languages, name="language"))

    def measures(self, unpaired: bool = False, **filters: Any) -> pd.DataFrame:
        """Return the measures of all strategies in long form, like a report's summary.csv.

        ``strategy`` is the label in tables. For few-shot runs, see `few_shot`.

        Args:
            unpaired: average all runs of each strategy. Otherwise, average only the combinations of order,
                seed and bucket that all strategies have finished, except those with much fewer runs.
            filters: see `Study`; runs are filtered before averaging, except reference runs.
        """
        rows = {key: value for key, value in filters.items() if key in COLUMNS}
        runs = self.where(**{key: value for key, value in filters.items() if key not in COLUMNS})
        return _rows(summarise([record for record in runs.records if not is_few_shot(record)], unpaired), rows)

    def few_shot(self, **filters: Any) -> pd.DataFrame:
        """Return the scores of the few-shot runs in long form, like a report's few_shot.csv."""
        return self._where(few_shot_scores(self.records), filters)

    def predictions(
        self,
        run: str,
        hop: int | None = None,
        language: str | None = None,
        split: str | None = "test",
        text: bool = False,
    ) -> pd.DataFrame:
        """Return a run's predictions: a row for each hop, language and example, with the names of labels and tags.

        Columns: see `xclrun.store.predictions`. Gold labels and tags that do not occur in training are None.

        Args:
            run: run ID, or a unique part of it.
            hop: None: all hops.
            language: None: all languages.
            split: ``test``, or ``dev`` if it was predicted; None: all.
            text: read the dataset and add the column ``text`` (the joined words; with answers, the original text) and,
                for pairs, ``text_b``.

        Raises:
            UsageError: unknown run, hop, language or split, or the dataset cannot be read.
            RunError: a file is damaged, or the dataset has changed.
        """
        import pandas as pd

        directory = RunDirectory(self.outputs / "runs" / self._record(run).run_id)
        try:
            manifest = directory.read_manifest()
            hops = {stage["hop"]: directory.predictions(stage["hop"]) for stage in manifest["stages"]}
            _check("hop", hop, hops)
            chosen = hops if hop is None else {hop: hops[hop]}
            frames = [directory.table(path).to_pandas() for path in chosen.values()]
            labels, tags = manifest["labels"], manifest["tags"]
        except UNREADABLE_RUN as error:
            raise RunError(f"{directory.path}: cannot read the predictions ({error})") from error
        frame = pd.concat(frames, ignore_index=True).drop(columns="run_id", errors="ignore")
        for column, value in (("language", language), ("split", split)):
            _check(column, value, frame[column].unique())
            frame = frame if value is None else frame[frame[column] == value].reset_index(drop=True)
        for column in ("gold", "predicted"):
            frame[column] = [_name(labels, number) for number in frame[column]]
            frame[f"{column}_tags"] = [
                None if numbers is None else [_name(tags, number) for number in numbers]
                for numbers in frame[f"{column}_tags"]
            ]
        return _with_text(frame, directory) if text else frame

    def figures(self) -> list[str]:
        """Return the names of the figures of these runs, for `figure`."""
        return list(self._plots)

    def figure(self, name: str) -> Figure:
        """Draw a figure of the report.

        Args:
            name: one of `figures`, or a unique part of it.

        Raises:
            UsageError: unknown figure, or a figure without data.
        """
        from matplotlib import rc_context

        # As in reports, "$" in a name does not start math text.
        with rc_context({"axes.titley": 1.0, "text.parse_math": False}):
            figure = self._plots[matching(name, self._plots, "figure")].draw()
        if figure is None:
            raise UsageError(f"figure '{name}' has no data")
        return figure

    @cached_property
    def _plots(self) -> dict[str, Plot]:
        import xclrun.report.parts  # noqa: F401  Registers the parts of sections.
        from xclrun.analysis.aggregate import comparisons
        from xclrun.plan import thaw
        from xclrun.report.fewshot import few_shot_sections
        from xclrun.report.fewshot.read import read_few_shot
        from xclrun.report.section import Options, Section, Sources
        from xclrun.report.strategies import ReportData, StrategySection

        streams = [record for record in self.records if not is_few_shot(record)]
        finished = [record for record in streams if record.finished]
        sources = Sources(
            predictions=lambda: read_predictions(self.outputs, finished, _warn),
            gradients=lambda: read_gradients(self.outputs, finished, _warn),
        )
        data = ReportData(streams, sources=sources)
        sections: list[Section] = [StrategySection(comparison, data) for comparison in comparisons(streams)]
        few_shot = read_few_shot(self.outputs, self.records, lambda directory: thaw(directory).dataset)
        sections += few_shot_sections(self.records, few_shot, Options())
        return {plot.name: plot for section in sections for block in section.blocks for plot in block.plots}

    def _record(self, run: str) -> RunRecord:
        by_id = {record.run_id: record for record in self.records}
        return by_id[matching(run, by_id)]

    def _where(self, frame: pd.DataFrame, filters: Mapping[str, Any]) -> pd.DataFrame:
        """Filter the rows of a frame by its columns and by config keys of their runs."""
        columns = {key: value for key, value in filters.items() if key in frame.columns}
        keys = {key: value for key, value in filters.items() if key not in columns}
        if keys:
            run = "run" if "run" in frame.columns else "run_id"
            frame = frame[frame[run].isin([record.run_id for record in self._filtered(keys)])]
        return _rows(frame, columns)


def _run_columns(record: RunRecord) -> dict[str, Any]:
    names = ("dataset", "model", "strategy", "order", "seed", "shots", "bucket")
    return {"run": record.run_id, **{name: getattr(record, name) for name in names}}


def _name(names: Sequence[str], number: Any) -> str | None:
    """Return the name of a class or tag; None for a missing or negative id."""
    return names[int(number)] if number is not None and number >= 0 else None


def _with_text(frame: pd.DataFrame, directory: RunDirectory) -> pd.DataFrame:
    """Add the texts of the examples to prediction rows."""
    from xclrun.plan import thaw

    splits = thaw(directory).dataset.splits
    keys = set(zip(frame["language"], frame["split"], strict=True))
    examples = {(*key, example.id): example for key in keys for example in splits[key]}
    chosen = [examples[key] for key in zip(frame["language"], frame["split"], frame["example_id"], strict=True)]
    # Answer positions refer to the original text.
    texts = [" ".join(example.tokens) if example.answers is None else example.whole for example in chosen]
    frame = frame.assign(text=texts)
    pairs = any(example.text_b is not None for example in chosen)
    return frame.assign(text_b=[example.text_b or "" for example in chosen]) if pairs else frame


def _rows(frame: pd.DataFrame, filters: Mapping[str, Any]) -> pd.DataFrame:
    for key, value in filters.items():
        for item in _several(value):
            _check(key, item, frame[key].unique())
        frame = frame[frame[key].isin(_several(value))]
    return frame.reset_index(drop=True)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


def _texts(value: Any) -> list[str]:
    """Return values as text, for `filtered`."""
    return [item if isinstance(item, str) else json.dumps(item) for item in _several(value)]


def _check(name: str, value: Any, available: Iterable[Any]) -> None:
    """Raise a UsageError for an unknown value; None selects all values."""
    available = list(available)
    if value is not None and value not in available:
        raise UsageError(f"unknown {name} '{value}'; {did_you_mean(str(value), map(str, available))}")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)
