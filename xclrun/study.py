"""What has run, as DataFrames: the Python API, for notebooks.

    import xclrun
    study = xclrun.load("outputs")
    study.measures(measure="F", order="mean")

Every number is what ``xclrun report --from runs`` computes, by the same functions. Scores and measures are fractions.
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
from xclrun.analysis.reference import References
from xclrun.config.files import default_outputs
from xclrun.core.errors import RunError, UsageError, did_you_mean
from xclrun.core.task import BY_SHORT
from xclrun.store.records import UNREADABLE, read_gradients, read_predictions, read_records, sweeps
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from xclrun.report.part import Plot


class Study:
    """The runs under an outputs folder.

    Keywords of its methods are filters: the name of a column keeps the rows with that value, or with one of a list of
    values; any other keyword is a key of the config, and keeps the runs that have it, as ``report --filter`` does. Keys
    with dots are passed as ``**{"trainer.epochs": 5}``.

    Attributes:
        outputs: the folder that ``paths.outputs`` named.
        records: the runs, of any status; only finished ones enter measures and figures.
    """

    def __init__(self, outputs: Path, records: Sequence[RunRecord]) -> None:
        self.outputs = outputs
        self.records = list({record.run_id: record for record in records}.values())

    @classmethod
    def read(cls, outputs: str | Path | None = None) -> Study:
        """Read all runs under an outputs folder: see `xclrun.load`."""
        folder = Path(outputs or default_outputs()).expanduser()
        if not folder.is_dir():
            raise UsageError(f"{folder}: there is no such folder; xclrun.load takes the one that paths.outputs named")
        records = read_records(folder, _warn)
        if not records:
            raise UsageError(f"{folder}: no run in it can be read; make some, for example: xclrun strategy=naive,er -m")
        return cls(folder, records)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        finished = sum(record.status == "finished" for record in self.records)
        lines = [f"Study of {self.outputs}: {len(self)} runs, {finished} finished"]
        for what in ("dataset", "model", "strategy", "order", "seed"):
            values = list(dict.fromkeys(str(getattr(record, what)) for record in self.records))
            more = f", … ({len(values)} in all)" if len(values) > 8 else ""
            lines.append(f"  {what + ':':<10}{', '.join(values[:8])}{more}")
        return "\n".join(lines)

    def where(self, **filters: Any) -> Study:
        """Return the runs that have a value, or one of several, of each of these keys of the config.

        ``strategy``, ``order``, ``dataset`` and ``model`` stand for their names. The reference runs that transfer is
        measured against stay with the runs that need them.

        Raises:
            UsageError: no run has the key, or none of the values.
        """
        kept = filtered(self.records, {key: set(_texts(value)) for key, value in filters.items()}, "")
        return self._with_references(kept) if filters else self

    def sweep(self, name: str | None = None) -> Study:
        """Return the runs of a sweep, and their references; None: of the one that was started last.

        Raises:
            UsageError: there is no such sweep.
        """
        known = {sweep["name"]: set(sweep["runs"]) for sweep in sweeps(self.outputs, _warn)}
        if not known:
            raise UsageError(f"{self.outputs}: no sweep was started here")
        if name is not None and name not in known:
            raise UsageError(f"no sweep is called '{name}' in {self.outputs}; {did_you_mean(name, known)}")
        wanted = known[name or list(known)[-1]]
        return self._with_references([record for record in self.records if record.run_id in wanted])

    def _with_references(self, kept: list[RunRecord]) -> Study:
        return Study(self.outputs, kept + References(self.records).of(kept))

    def runs(self, **filters: Any) -> pd.DataFrame:
        """Return a row for each run, indexed by run id: what it was, its status, and what it took (`COSTS`)."""
        import pandas as pd

        labels = strategy_labels(self.records)
        rows = [
            {
                **self._named(record),
                "label": labels[record.run_id],
                "languages": " ".join(record.languages),
                "status": record.status,
                **record.costs,
            }
            for record in self.records
        ]
        return self._kept(pd.DataFrame(rows, columns=None if rows else ["run"]), filters).set_index("run")

    def scores(self, **filters: Any) -> pd.DataFrame:
        """Return the score matrices in long form: a row for each run, metric, hop and language that was scored.

        ``learnt`` is what the hop trained on: a language, ``all``, or nothing before fine-tuning.
        """
        import pandas as pd

        rows = [
            {
                **self._named(record),
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
        return self._kept(pd.DataFrame(rows).dropna(subset="score", ignore_index=True), filters)

    def matrix(self, run: str, metric: str | None = None) -> pd.DataFrame:
        """Return the score matrix R of a run: a row for each hop, from 0, and a column for each language.

        Args:
            run: its id, or a beginning that no other run has.
            metric: its name, or its short name; None: the first that the run has.

        Raises:
            UsageError: there is no such run or metric.
        """
        import pandas as pd

        record = self._record(run)
        name = BY_SHORT[metric].name if metric in BY_SHORT else metric or next(iter(record.scores))
        if name not in record.scores:
            raise UsageError(f"{record.run_id}: no scores of '{metric}'; {did_you_mean(name, record.scores)}")
        hops = pd.RangeIndex(record.hops + 1, name="hop")
        return pd.DataFrame(record.scores[name], index=hops, columns=pd.Index(record.languages, name="language"))

    def measures(self, unpaired: bool = False, **filters: Any) -> pd.DataFrame:
        """Return the measures of all strategies in long form: what a report writes as summary.csv.

        ``strategy`` is the label in tables. Few-shot runs have none: see `few_shot`.

        Args:
            unpaired: means over all runs of each strategy, not over those that all strategies have finished.
            filters: see `Study`; filters of runs are applied before the means, and keep reference runs.
        """
        rows = {key: value for key, value in filters.items() if key in COLUMNS}
        runs = self.where(**{key: value for key, value in filters.items() if key not in rows})
        return _rows(summarise([record for record in runs.records if not is_few_shot(record)], unpaired), rows)

    def few_shot(self, **filters: Any) -> pd.DataFrame:
        """Return the scores of the few-shot runs in long form: what a report writes as few_shot.csv."""
        return self._kept(few_shot_scores(self.records), filters)

    def predictions(
        self,
        run: str,
        hop: int | None = None,
        language: str | None = None,
        split: str | None = "test",
        text: bool = False,
    ) -> pd.DataFrame:
        """Return what a run predicted: a row for each hop, language and example, with labels and tags as words.

        Columns are those of `xclrun.store.predictions`. A gold label that training never had is missing (a tag: None).

        Args:
            run: its id, or a beginning that no other run has.
            hop: of one hop; None: of all.
            language: of one language; None: of all.
            split: ``test`` or, where dev was predicted too, ``dev``; None: all.
            text: add columns ``text`` (the words, joined; where it has answers, as it is written) and, for pairs,
                ``text_b``; the dataset is read again.

        Raises:
            UsageError: there is no such run, hop, language or split, or the dataset cannot be read.
            RunError: a file is damaged, or the dataset has changed since.
        """
        import pandas as pd

        directory = RunDirectory(self.outputs / "runs" / self._record(run).run_id)
        try:
            manifest = directory.read_manifest()
            hops = {stage["hop"]: directory.predictions(stage["hop"]) for stage in manifest["stages"]}
            _check("hop", hop, hops)
            chosen = hops if hop is None else {hop: hops[hop]}
            frames = [directory.table(path).to_pandas() for path in chosen.values()]
            labels, tags = _Words(manifest["labels"]), _Words(manifest["tags"])
        except UNREADABLE as error:
            raise RunError(f"{directory.path}: its predictions cannot be read ({error})") from error
        frame = pd.concat(frames, ignore_index=True).drop(columns="run_id", errors="ignore")
        for column, value in (("language", language), ("split", split)):
            _check(column, value, frame[column].unique())
            frame = frame if value is None else frame[frame[column] == value].reset_index(drop=True)
        for column in ("gold", "predicted"):
            frame[column] = [labels.of(number) for number in frame[column]]
            frame[f"{column}_tags"] = [tags.of_all(numbers) for numbers in frame[f"{column}_tags"]]
        return _with_text(frame, directory) if text else frame

    def figures(self) -> list[str]:
        """Return the names of the figures that a report of these runs may have: what `figure` takes."""
        return list(self._plots)

    def figure(self, name: str) -> Figure:
        """Draw a figure of the report.

        Args:
            name: as `figures` lists it, or a beginning that no other one has; a report saves it under this name.

        Raises:
            UsageError: there is no such figure, or it has nothing to show.
        """
        from matplotlib import rc_context

        # As a report draws them: names are text, in which a "$" begins no formula.
        with rc_context({"axes.titley": 1.0, "text.parse_math": False}):
            figure = self._plots[_one("figure", name, self._plots)].draw()
        if figure is None:
            raise UsageError(f"figure '{name}': there is nothing to show")
        return figure

    @cached_property
    def _plots(self) -> dict[str, Plot]:
        import xclrun.report.parts  # noqa: F401  What a section is made of.
        from xclrun.analysis.aggregate import comparisons
        from xclrun.report.fewshot import few_shot_sections
        from xclrun.report.fewshot.read import read_few_shot
        from xclrun.report.section import Options, Section
        from xclrun.report.strategies import ReportData, StrategySection
        from xclrun.run import thaw

        others = [record for record in self.records if not is_few_shot(record)]
        finished = [record for record in others if record.status == "finished"]
        data = ReportData(
            others,
            predictions=lambda: read_predictions(self.outputs, finished, _warn),
            gradients=lambda: read_gradients(self.outputs, finished, _warn),
        )
        sections: list[Section] = [StrategySection(comparison, data) for comparison in comparisons(others)]
        behind = read_few_shot(self.outputs, self.records, lambda directory: thaw(directory).dataset)
        sections += few_shot_sections(self.records, behind, Options())
        return {plot.name: plot for section in sections for block in section.blocks for plot in block.plots}

    def _record(self, run: str) -> RunRecord:
        by_id = {record.run_id: record for record in self.records}
        return by_id[_one("run", run, by_id)]

    @staticmethod
    def _named(record: RunRecord) -> dict[str, Any]:
        """Return the columns that say which run a row is of."""
        return {
            "run": record.run_id,
            **{name: getattr(record, name) for name in ("dataset", "model", "strategy", "order", "seed")},
            "shots": record.shots,
            "bucket": record.bucket,
        }

    def _kept(self, frame: pd.DataFrame, filters: Mapping[str, Any]) -> pd.DataFrame:
        """Return the rows that have the values asked for, of the runs that have those of the config."""
        other = {key: value for key, value in filters.items() if key not in frame.columns}
        if other:
            runs = filtered(self.records, {key: set(_texts(value)) for key, value in other.items()}, "")
            column = "run" if "run" in frame.columns else "run_id"
            frame = frame[frame[column].isin([record.run_id for record in runs])]
        return _rows(frame, {key: value for key, value in filters.items() if key not in other})


class _Words:
    """The names of classes or tags by their numbers; a negative number is a name that training never had: None."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def of(self, number: Any) -> str | None:
        return self.names[int(number)] if number is not None and number >= 0 else None

    def of_all(self, numbers: Iterable[int] | None) -> list[str | None] | None:
        return None if numbers is None else [self.of(number) for number in numbers]


def _with_text(frame: pd.DataFrame, directory: RunDirectory) -> pd.DataFrame:
    """Return prediction rows with the texts of their examples."""
    from xclrun.run import thaw

    splits = thaw(directory).dataset.splits
    keys = set(zip(frame["language"], frame["split"], strict=True))
    examples = {(*key, example.id): example for key in keys for example in splits[key]}
    own = [examples[key] for key in zip(frame["language"], frame["split"], frame["example_id"], strict=True)]
    # Places of answers are in the text as it is written.
    texts = [" ".join(example.tokens) if example.answers is None else example.whole for example in own]
    frame = frame.assign(text=texts)
    pairs = any(example.text_b is not None for example in own)
    return frame.assign(text_b=[example.text_b or "" for example in own]) if pairs else frame


def _rows(frame: pd.DataFrame, filters: Mapping[str, Any]) -> pd.DataFrame:
    for key, value in filters.items():
        for one in _several(value):
            _check(key, one, frame[key].unique())
        frame = frame[frame[key].isin(_several(value))]
    return frame.reset_index(drop=True)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


def _texts(value: Any) -> list[str]:
    """Return values as `filtered` compares them: as text, null for None."""
    return [one if isinstance(one, str) else json.dumps(one) for one in _several(value)]


def _check(what: str, value: Any, known: Iterable[Any]) -> None:
    """Refuse a value that is not there; None is no value."""
    known = list(known)
    if value is not None and value not in known:
        raise UsageError(f"{what} '{value}' is not there; {did_you_mean(str(value), map(str, known))}")


def _one(what: str, name: str, known: Iterable[str]) -> str:
    """Return the one of the known names that is this one, or begins with it."""
    names = list(known)
    found = [name] if name in names else [one for one in names if one.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{what} '{name}' is not one: {', '.join(found[:8])}{', …' if len(found) > 8 else ''}")
    raise UsageError(f"no {what} is called '{name}'; {did_you_mean(name, names)}")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)
