"""The Python API: runs, scores, measures and predictions as DataFrames.

    import xclrun
    study = xclrun.load("outputs")
    study.measures(measure="F", order="mean")

All values equal those of ``xclrun report --from-runs``. Scores and measures are fractions.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis.aggregate import measures_of_runs, summarise
from xclrun.analysis.columns import COLUMNS, QUANTITY, UNIT
from xclrun.analysis.fewshot.scores import few_shot_scores, is_few_shot
from xclrun.analysis.filters import filtered
from xclrun.analysis.finished import with_references
from xclrun.analysis.grouping import strategy_labels
from xclrun.analysis.measures import quantity
from xclrun.analysis.record import COSTS, RunRecord
from xclrun.analysis.records import read_gradients, read_predictions, read_records
from xclrun.analysis.reference import References
from xclrun.config.files import default_outputs
from xclrun.core.errors import RunError, UsageError, did_you_mean
from xclrun.core.identity import flat
from xclrun.core.names import matching
from xclrun.core.plugins import load_installed
from xclrun.core.task import BY_SHORT, select_metrics
from xclrun.core.version import PACKAGE
from xclrun.store.rundir import UNREADABLE_RUN, RunDirectory
from xclrun.store.sweeps import sweeps

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from xclrun.report.part import Plot


class Study:
    """Runs of an outputs directory, as DataFrames and figures. `xclrun.load` and `xclrun.run` return a study.

    Keyword arguments of its methods are filters: ``column=value``, or ``column=[values]`` with a list, range, array or
    Series. Any other keyword is a config key and selects runs, like ``report --filter``. Pass keys with dots as
    ``**{"trainer.epochs": 5}``. `xclrun.COLUMNS` describes the columns.

    Attributes:
        outputs: the directory set by ``paths.outputs``.
        records: runs of any status; measures and figures use finished runs only.
        references: further runs, of the strategy ``lang_spec_ft``: transfer is computed from their scores, but they
            have no rows.
    """

    def __init__(self, outputs: Path, records: Iterable[RunRecord], references: Iterable[RunRecord] = ()) -> None:
        self.outputs = outputs
        self.records = list({record.run_id: record for record in records}.values())
        own = {record.run_id for record in self.records}
        self.references = [record for record in references if record.run_id not in own]

    @classmethod
    def read(cls, outputs: str | Path | None = None, metrics: str | Iterable[str] = ()) -> Study:
        """Read all runs under an outputs directory: see `xclrun.load`."""
        load_installed()
        select_metrics(_several(metrics), "metrics")
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

    def __getstate__(self) -> dict[str, Any]:
        # Figures refer to local functions, which cannot be pickled.
        return {key: value for key, value in vars(self).items() if key != "_plots"}

    def where(self, **filters: Any) -> Study:
        """Return the runs with these config values; their reference runs become `references`.

        ``strategy``, ``order``, ``dataset`` and ``model`` are matched by name.

        Raises:
            UsageError: no run has the key or the value.
        """
        return self._selected(self._filtered(filters)) if filters else self

    def _filtered(self, filters: Mapping[str, Any]) -> list[RunRecord]:
        return filtered(self.records, {key: set(_texts(value)) for key, value in filters.items()}, "")

    def sweep(self, name: str | None = None) -> Study:
        """Return the runs of a sweep (default: the most recent); further reference runs become `references`.

        Raises:
            UsageError: the sweep does not exist.
        """
        runs = {sweep["name"]: set(sweep["runs"]) for sweep in sweeps(self.outputs, _warn)}
        if not runs:
            raise UsageError(f"{self.outputs}: no sweeps; start one with xclrun … -m")
        if name is not None and name not in runs:
            raise UsageError(f"{self.outputs}: unknown sweep '{name}'; {did_you_mean(name, runs)}")
        run_ids = runs[name or list(runs)[-1]]
        return self._selected([record for record in self.records if record.run_id in run_ids])

    def _selected(self, records: list[RunRecord]) -> Study:
        return Study(self.outputs, records, References([*self.records, *self.references]).needed_by(records))

    def runs(self, config: bool | str | Iterable[str] = (), **filters: Any) -> pd.DataFrame:
        """Return a row for each run, indexed by run ID: its settings, status and costs.

        Args:
            config: config keys, such as ``trainer.epochs``, or groups of keys, such as ``trainer``, to add as columns;
                True: all keys. Lists become tuples; a key that a run lacks is missing (NaN or None).
            filters: see `Study`.

        Raises:
            UsageError: no run has the key or the value.
        """
        import pandas as pd

        rows = [
            {
                **head,
                "stream": record.stream,
                "languages": " ".join(record.languages),
                "status": record.status,
                **{name: record.costs.get(name, math.nan) for name in COSTS},
            }
            for record, head in self._heads()
        ]
        frame = self._where(pd.DataFrame(rows, columns=list(COLUMNS["runs"])), filters).set_index("run")
        return frame.join(self._config(config)) if config else frame

    def _config(self, keys: bool | str | Iterable[str]) -> pd.DataFrame:
        """Return the values of config keys by run ID."""
        import pandas as pd

        settings = {
            record.run_id: {
                key: tuple(value) if isinstance(value, list) else value for key, value in flat(record.config)
            }
            for record in self.records
        }
        known = dict.fromkeys(key for values in settings.values() for key in values)
        chosen = dict(known) if keys is True else dict[str, None]()
        for text in [] if isinstance(keys, bool) else _several(keys):
            below = [key for key in known if key == text or key.startswith(f"{text}.")]
            if not below:
                raise UsageError(f"config={text}: unknown key; {did_you_mean(str(text), known)}")
            chosen.update(dict.fromkeys(below))
        # Runs have columns for these keys.
        chosen = {key: None for key in chosen if key not in COLUMNS["runs"]}
        rows = [{key: values.get(key) for key in chosen} for values in settings.values()]
        return pd.DataFrame(rows, index=pd.Index(list(settings), name="run"), columns=list(chosen))

    def scores(self, **filters: Any) -> pd.DataFrame:
        """Return the score matrices in long form: a row for each measured run, metric, hop and language.

        The column ``learnt`` names the training data of the hop: a language, ``all``, or empty before fine-tuning.
        """
        import pandas as pd

        rows = [
            {
                **head,
                "metric": metric,
                "hop": hop,
                "learnt": record.learnt[hop - 1] if hop else "",
                "language": language,
                "score": matrix[hop, column],
            }
            for record, head in self._heads()
            for metric, matrix in record.scores.items()
            for hop in range(record.hops + 1)
            for column, language in enumerate(record.languages)
        ]
        frame = pd.DataFrame(rows, columns=list(COLUMNS["scores"]))
        return self._where(frame.dropna(subset="score", ignore_index=True), filters)

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
        """Return the means of the measures of all strategies in long form, like a report's summary.csv.

        ``strategy`` is the label in tables. Two further columns have the unit of the values and the direction. For
        few-shot runs, see `few_shot`.

        Args:
            unpaired: average all runs of each strategy. Otherwise, average only the combinations of order,
                seed and bucket that all strategies have finished, except those with much fewer runs.
            filters: see `Study`; runs are filtered before averaging, except reference runs.
        """
        rows = {key: value for key, value in filters.items() if key in COLUMNS["measures"]}
        runs = self.where(**{key: value for key, value in filters.items() if key not in rows})
        return _rows(_with_quantities(summarise(runs._in_sequence, unpaired, runs.references)), rows)

    def run_measures(self, **filters: Any) -> pd.DataFrame:
        """Return the measures of each finished run in long form: a row for each run, metric, measure and language.

        `measures` has their means. A value that a run lacks is NaN, and ``status`` gives the reason. Few-shot runs have
        no measures.
        """
        import pandas as pd

        heads = {record.run_id: head for record, head in self._heads()}
        values = measures_of_runs(self._in_sequence, self.references)
        rows = [{**heads[record.run_id], **value} for record, value in values]
        frame = pd.DataFrame(rows, columns=[name for name in COLUMNS["run_measures"] if name not in QUANTITY])
        return self._where(_with_quantities(frame.astype({"value": float})), filters)

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
        """Return the names of the figures that can be drawn of these runs, for `figure`."""
        from xclrun.report.style import can_draw

        return [name for name, plot in self._plots.items() if can_draw(plot.draw)]

    def figure(self, name: str) -> Figure:
        """Draw a figure of the report; notebooks show it as SVG.

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

        streams = self._in_sequence
        finished = [record for record in streams if record.finished]
        sources = Sources(
            predictions=lambda: read_predictions(self.outputs, finished, _warn),
            gradients=lambda: read_gradients(self.outputs, finished, _warn),
            references=self.references,
        )
        data = ReportData(streams, sources=sources)
        sections: list[Section] = [StrategySection(comparison, data) for comparison in comparisons(streams)]
        few_shot = read_few_shot(self.outputs, self.records, lambda directory: thaw(directory).dataset)
        sections += few_shot_sections(self.records, few_shot, Options())
        return {plot.name: plot for section in sections for block in section.blocks for plot in block.plots}

    @property
    def _in_sequence(self) -> list[RunRecord]:
        """The runs that have measures: all except few-shot runs."""
        return [record for record in self.records if not is_few_shot(record)]

    def _heads(self) -> list[tuple[RunRecord, dict[str, Any]]]:
        """Return each run with the columns that name it."""
        labels = strategy_labels(self.records)
        names = ("dataset", "model", "strategy", "order", "seed", "shots", "bucket")
        return [
            (run, {"run": run.run_id, **{name: getattr(run, name) for name in names}, "label": labels[run.run_id]})
            for run in self.records
        ]

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


def run(*arguments: str) -> Study:
    """Run a command in another process: see `xclrun.run`."""
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        # This process may have found xclrun in a folder that others do not search.
        code = (
            f"import sys; sys.path.append({str(PACKAGE.parent)!r}); from xclrun.cli import answer; sys.exit(answer())"
        )
        interrupted = False
        with subprocess.Popen(
            [sys.executable, "-c", code, str(answer), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONIOENCODING": "utf-8"},
            encoding="utf-8",
            errors="replace",
        ) as process:
            while True:
                try:
                    # Printed here, since notebooks show only what their own process prints.
                    for text in process.stdout or ():
                        print(text, end="", flush=True)
                    break
                except KeyboardInterrupt:
                    # The run saves a checkpoint and ends; a second interrupt ends it without waiting.
                    interrupted = True
                    process.send_signal(signal.SIGINT)
        if interrupted:
            raise KeyboardInterrupt
        if not answer.is_file():
            raise RunError(
                f"the process of the runs ended with exit code {process.returncode} before they had finished"
            )
        content = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in content:
        raise (UsageError if process.returncode == UsageError.exit_code else RunError)(content["error"])
    outputs = Path(content["outputs"])
    records = read_records(outputs, _warn, only=content["runs"])
    others, _ = with_references(outputs, records, _warn)
    return Study(outputs, records, References([*records, *others]).needed_by(records))


def _with_quantities(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the unit of the values and the direction of each row's measure."""
    pairs = list(zip(frame["metric"], frame["measure"], strict=True))
    kinds = {pair: quantity(*pair) for pair in dict.fromkeys(pairs)}
    units = [UNIT if kinds[pair].scale == 100 else kinds[pair].unit for pair in pairs]
    return frame.assign(unit=units, higher_is_better=[kinds[pair].higher_is_better for pair in pairs])


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
    """Return the values of an argument, one or several (list, range, array, Series, …), as Python's own values."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    values = [value] if isinstance(value, str) or not isinstance(value, Iterable) else value
    return [item.item() if isinstance(item, np.generic) else item for item in values]


def _texts(value: Any) -> list[str]:
    """Return values as text, for `filtered`."""
    return [item if isinstance(item, str) else json.dumps(item, default=str) for item in _several(value)]


def _check(name: str, value: Any, available: Iterable[Any]) -> None:
    """Raise a UsageError for an unknown value; None selects all values."""
    available = list(available)
    if value is not None and value not in available:
        raise UsageError(f"unknown {name} '{value}'; {did_you_mean(str(value), map(str, available))}")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)
