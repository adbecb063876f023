"""Makes the stages of a run: trained weights, the strategy's state, predictions; reads those that the store has.

Nothing is loaded that is not needed: a run whose evaluations are all in the store never builds a model. A stage is made
under its lease, so that processes that need the same one at the same time make it once.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xclrun.config.schema import OptimizerState, Selection
from xclrun.core.identity import Stage, derive, encoder_hop, hands_on
from xclrun.core.stream import Hop
from xclrun.core.version import code_version
from xclrun.data.encode import Encoded, outputs, word_numbers
from xclrun.model.network import Model, build
from xclrun.run import Run
from xclrun.store import predictions
from xclrun.store.files import read_json, write_json
from xclrun.store.stages import StageStore
from xclrun.store.tensors import load_tensors, save_tensors
from xclrun.strategy import Context, State
from xclrun.strategy.shared.parameters import sizes
from xclrun.train import attention
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.encodings import Encodings, encodings, kept_cut
from xclrun.train.evaluate import Evaluator
from xclrun.train.features import features_key, load_features, save_features, with_features
from xclrun.train.listen import Listener
from xclrun.train.loop import HopTraining, take_over, trained_tensors
from xclrun.train.optimize import state_by_name
from xclrun.train.points import FILE as POINTS
from xclrun.train.points import Points
from xclrun.train.precision import choose_device
from xclrun.train.stop import StopFlag

# The state of the optimiser after a hop, beside its weights, where later hops take it up.
OPTIMIZER = "optimizer.safetensors"

# Seconds between two looks at what another process is making.
POLL = 0.5

# What an untrained model has done.
UNTRAINED: dict[str, Any] = {"examples": 0, "tokens": 0, "updates": 0, "seconds": 0.0, "epochs": []}


class Busy(Exception):
    """Another process is making what is needed; something else can be done first."""


def made_here() -> dict[str, Any]:
    """Return who is making something: host, process, version of the code."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "code_version": code_version()}


@dataclass(frozen=True)
class Recalled:
    """The strategy's `Library`: weights after hops that were recalled, from the store.

    It knows nothing of the maker: the strategy, which the maker holds, must not hold the maker.
    """

    store: StageStore
    stages: Sequence[Stage]

    def tensors(self, hop: int, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Return some of the weights after a hop."""
        return load_tensors(self.store.path(self.stages[hop].train) / "weights.safetensors", names)


class Maker:
    """Model and strategy of one run, brought to where they were after any of its hops.

    Args:
        run: what to do.
        listener: hears progress.
        stop: is set when the run should stop.
        patient: wait for what another process is making; otherwise raise `Busy`.
    """

    def __init__(self, run: Run, listener: Listener, stop: StopFlag, patient: bool = True) -> None:
        self.run, self.listener, self.stop, self.patient = run, listener, stop, patient
        self.store = replace(run.store, tell=listener.noted)
        self.device = choose_device(run.config.runtime.device, run.config.trainer.precision)
        self.strategy = run.strategy()
        self.untouched, self.untouched_footprint = self.strategy.state_dict(), self.strategy.footprint()
        self.weights_of: int | None = None
        self.state_of: int | None = 0
        self.trained_here: set[int] = set()
        self.whole: set[str] = set()
        self.featured: dict[str, Encoded] = {}

    @cached_property
    def _begun(self) -> bool:
        """Whether an earlier attempt at the run has trained a hop."""
        return any(
            self.store.has(s.train) and self.trained_by(s) == self.run.id for s in self.run.stages if s.hop.index
        )

    # What is only made where something has to be computed.

    @cached_property
    def encodings(self) -> Encodings:
        return encodings(self.run, self.listener.noted)

    @cached_property
    def model(self) -> Model:
        return self._untrained()

    @cached_property
    def evaluator(self) -> Evaluator:
        config = self.run.config
        size, precision = config.evaluate.batch_size, config.trainer.precision.value
        return Evaluator(self.run.dataset, self.device, size, precision, config.evaluate.slot_f1)

    @cached_property
    def cut(self) -> dict[str, dict[str, int]]:
        """What the length limit cuts (see `Encodings.cut`)."""
        if "encodings" not in self.__dict__ and (kept := kept_cut(self.run, self.listener.noted)) is not None:
            return kept
        return self.encodings.cut(self.run.dataset.task)

    def _untrained(self) -> Model:
        dataset, config = self.run.dataset, self.run.config
        tokenizer, kept = self.encodings.tokenizer, self.encodings.kept
        sizes_of_heads = len(dataset.labels), outputs(dataset.tags, config.model.label_on)
        model = build(config.model, tokenizer, *sizes_of_heads, config.seed, kept, dataset.task)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(config.seed, "strategy"))
            self.strategy.prepare(model, self.run.stream, Recalled(self.store, self.run.stages))
        return model.to(self.device)

    def _context(self, hop: Hop) -> Context:
        trainer = self.run.trainer(hop)
        train = {language: self.encodings.splits[language, "train"] for language in self.run.stream.languages}
        train |= {language: self._sentences(hop, language, "train") for language in hop.train}
        sentences = sum(len(train[language]) for language in hop.train)
        return Context(
            model=self.model,
            hop=hop,
            stream=self.run.stream,
            train=train,
            device=self.device,
            seed=self.run.config.seed,
            batch_size=trainer.batch(sentences),
            precision=trainer.precision.value,
        )

    def _sentences(self, hop: Hop, language: str, split: str) -> Encoded:
        """Return an encoded split as a hop learns from it and is evaluated on it.

        Where the hop keeps the encoder, which the model must have then, that is with features; they are found in the
        store, or made.
        """
        sentences = self.encodings.splits[language, split]
        if not self.strategy.keeps_encoder(hop):
            return sentences
        precision = self.run.config.trainer.precision.value
        encoder = encoder_hop(hop, self.run.stream, self.strategy)
        trained = self.run.stages[encoder.index].train
        key = features_key(trained, self.run.dataset.fingerprints[language, split], precision)

        def make() -> None:
            found = with_features(self.model, sentences, self.device, precision)
            facts = {
                "kind": "features",
                "hop": f"{encoder.name}: {language}/{split}",
                "run": self.run.id,
                **made_here(),
            }
            self.store.put(key, facts, lambda folder: save_features(folder, found))

        if key not in self.featured:
            self.featured[key] = load_features(self._obtain(key, make), sentences)
        return self.featured[key]

    def _obtain(self, key: str, make: Callable[[], None]) -> Path:
        """Return the folder of a stage: found in the store, made here, or made by another process meanwhile.

        Raises:
            Busy: another process is making it, and this one is not patient.
        """
        told = False
        while True:
            if (folder := self.store.get(key)) is not None:
                return folder
            lease = self.store.lease(key)
            if (mine := lease.try_acquire()) is not None:
                with lease.held(mine):
                    if (folder := self.store.get(key)) is None:
                        make()
                        folder = self.store.path(key)
                return folder
            if (owner := lease.owner()) is not None:
                if not self.patient:
                    raise Busy(str(owner))
                if not told:
                    self.listener.noted(f"waiting for a stage that {owner} is making")
                    told = True
            self.stop.check()
            time.sleep(POLL)

    # Weights.

    def weights(self, index: int) -> None:
        """Give the model the weights after hop ``index``: built, read from the store, or trained."""
        if self.weights_of == index:
            return
        if index == 0:
            if "model" in self.__dict__:
                self.model = self._untrained()
            assert self.model is not None
        else:
            stage = self.run.stages[index]
            if not self.store.has(stage.train):
                # Parents first, so that no lease is held while another is waited for.
                self._parents(stage.hop)
            folder = self._obtain(stage.train, lambda: self._train(stage))
            if self.weights_of != index:
                if self.strategy.keeps_encoder(stage.hop):
                    self.weights(stage.hop.parent)
                take_over(self.model, load_tensors(folder / "weights.safetensors"))
        self.weights_of = index

    def _parents(self, hop: Hop) -> None:
        """Bring strategy and model to where the training of ``hop`` starts, with all in the store that it relies on."""
        needed = set(self.strategy.relied_on(hop))
        if self.run.config.evaluate.every_examples is not None:
            # Evaluation inside the hop serves languages that were learnt before.
            needed |= {index for index in self.strategy.recalled(hop) if index < hop.index}
        if self._takes_up(hop):
            # Not only its weights, which the model may have already.
            needed.add(hop.parent)
        self._recall(sorted(needed))
        self.state(hop.parent)
        self.weights(hop.parent)
        for split, languages in (("train", hop.train), ("dev", hop.select)):
            for language in languages:
                self._sentences(hop, language, split)

    def _takes_up(self, hop: Hop) -> bool:
        """Whether the optimiser of a hop goes on from where its parent's was."""
        return hop.parent > 0 and self.run.trainer(hop).optimizer_state is OptimizerState.kept

    def _begin(self, context: Context) -> dict[str, Tensor]:
        """Begin a hop; return the optimiser's state that it takes up from its parent, if any.

        What the hop starts anew (heads that are reset, a language's own parts) has an optimiser's state of its own.
        """
        hop, model = context.hop, self.model
        if not self._takes_up(hop):
            self.strategy.begin_hop(context)
            return {}
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.strategy.begin_hop(context)
        goes_on = {
            name
            for name, parameter in model.named_parameters()
            if not self.strategy.language_specific(name) and torch.equal(parameter, before[name])
        }
        kept = load_tensors(self.store.path(self.run.stages[hop.parent].train) / OPTIMIZER)
        return {key: tensor for key, tensor in kept.items() if key.rpartition("/")[0] in goes_on}

    def _train(self, stage: Stage) -> None:
        hop, trainer = stage.hop, self.run.trainer(stage.hop)
        self._parents(hop)
        self.stop.check()
        self.listener.hop_started(self.run, hop)
        if self._begun and not self.trained_here and not self.store.checkpoints(stage.train).is_dir():
            self.listener.noted(f"goes on at hop {hop.index} {hop.name}, from its beginning")
        context = self._context(hop)
        # From here on the model is between hops: an interruption must not let it pass for either.
        self.weights_of = None
        inherited = self._begin(context)
        checkpoints = Checkpoints(self.store.checkpoints(stage.train), self.listener.noted)
        dev = {language: self._sentences(hop, language, "dev") for language in hop.select}
        points = None
        if (every := self.run.config.evaluate.every_examples) is not None:
            named = [(language, split) for language in self.run.stream.languages for split in ("dev", "test")]
            splits = {name: self._sentences(hop, *name) for name in named}
            points = Points(every, context, self.strategy, self.evaluator, splits, checkpoints.folder, checkpoints.tell)
        training = HopTraining(
            context,
            self.strategy,
            trainer,
            self.evaluator,
            dev,
            checkpoints,
            self.listener,
            self.stop,
            points,
            inherited,
        )
        counted = training.run()
        facts = {
            "kind": "train",
            "hop": hop.name,
            "depth": hop.depth,
            "run": self.run.id,
            **made_here(),
            "cost": self.run.cost(hop) | {"device": self.device.type},
            "training": counted,
        }
        # Without the encoder where the hop kept it: the parent's weights have it.
        tensors = trained_tensors(self.model) if self.strategy.keeps_encoder(hop) else self.model.state_dict()

        def fill(folder: Path) -> None:
            save_tensors(folder / "weights.safetensors", tensors)
            if trainer.optimizer_state is OptimizerState.kept and hands_on(hop, self.run.stream):
                # After the last update, whichever epoch's weights were selected: one Adam goes through all hops.
                save_tensors(folder / OPTIMIZER, state_by_name(training.optimizer, self.model))
            if points is not None:
                predictions.write(folder / POINTS, points.table(counted["points"]))

        self.store.put(stage.train, facts, fill)
        checkpoints.clear()
        self.trained_here.add(hop.index)
        self.weights_of = hop.index

    def trained_by(self, stage: Stage) -> str:
        """Return the id of the run that has trained a hop which is in the store, now or in an earlier attempt."""
        if stage.hop.index in self.trained_here:
            return self.run.id
        # The evaluation outlives the weights; who trained also evaluated, as a rule.
        return str(self.store.facts(stage.train if self.store.has(stage.train) else stage.evaluation).get("run"))

    def _recall(self, hops: Sequence[int]) -> None:
        """See to it that the weights after some hops, which the library will be asked for, lie in the store, whole."""
        for index in hops:
            stage = self.run.stages[index]
            if not self.store.has(stage.train):
                self._parents(stage.hop)
            elif stage.train in self.whole:
                continue
            self._obtain(stage.train, lambda stage=stage: self._train(stage))  # type: ignore[misc]
            self.whole.add(stage.train)

    # The strategy's state.

    def state(self, index: int) -> None:
        """Bring the strategy to its state after hop ``index``: fresh, read from the store, or computed."""
        if self.state_of == index:
            return
        key = self.run.stages[index].state
        if index == 0 or key is None:
            self.strategy.load_state_dict(self.untouched)
        else:
            hop = self.run.stages[index].hop
            if not self.store.has(key):
                self.weights(index)
                self.state(hop.parent)
            folder = self._obtain(key, lambda: self._end_hop(hop, key))
            if self.state_of != index:
                path = folder / "state.safetensors"
                tensors = load_tensors(path) if path.is_file() else {}
                self.strategy.load_state_dict(State(read_json(folder / "facts.json"), tensors))
        self.state_of = index

    def _end_hop(self, hop: Hop, key: str) -> None:
        self.weights(hop.index)
        self.state(hop.parent)
        self.state_of, began = None, time.monotonic()
        self.strategy.end_hop(self._context(hop))
        footprint = {**self.strategy.footprint(), "seconds": time.monotonic() - began}
        facts = {"kind": "state", "hop": hop.name, "run": self.run.id, **made_here()}
        self.store.put(key, facts | {"footprint": footprint}, self._fill_state)
        self.state_of = hop.index

    def _fill_state(self, folder: Path) -> None:
        state = self.strategy.state_dict()
        write_json(folder / "facts.json", state.facts)
        if state.tensors:
            save_tensors(folder / "state.safetensors", state.tensors)

    def footprint(self, stage: Stage) -> Mapping[str, float] | None:
        """Return what the strategy keeps after a hop, and the ``seconds`` that it took to make that.

        None where the store has no state of it (yet, or any more).
        """
        if stage.state is None:
            return {**self.untouched_footprint, "seconds": 0.0}
        try:
            found: Mapping[str, float] | None = self.store.facts(stage.state).get("footprint")
        except (OSError, ValueError, AttributeError):
            return None
        return found

    # Predictions.

    def evaluation(self, stage: Stage) -> tuple[Path, dict[str, Any]]:
        """Return folder and facts of a hop's evaluation; made where the store lacks it.

        The facts hold its scores and the counters of its training, so that they outlive the weights.
        """
        if not self.store.has(stage.evaluation):
            self._bring(stage.hop)
            for language in self.run.stream.languages:
                self._sentences(stage.hop, language, "test")
        folder = self._obtain(stage.evaluation, lambda: self._evaluate(stage))
        return folder, self.store.facts(stage.evaluation)

    def _bring(self, hop: Hop) -> None:
        """Bring model and strategy to where they are when a hop is evaluated."""
        self._recall(self.strategy.recalled(hop))
        self.weights(hop.index)
        self.state(hop.index)

    def _served(self, hop: Hop) -> Iterator[str]:
        """Yield the languages that are evaluated after a hop, each with the model having the parts that serve it.

        Sorted: what runs share is the same whichever run's order made it.
        """
        self._bring(hop)
        seen = [language for h in self.run.stream.hops[: hop.index + 1] for language in h.train]
        if self.strategy.serving_signature(hop):
            # Choosing parts changes the model, so that what is needed next is read anew.
            self.weights_of = None
        for language in sorted(self.run.stream.languages):
            self.stop.check()
            self.strategy.for_language(language, seen)
            yield language

    def _evaluate(self, stage: Stage) -> None:
        hop = stage.hop
        columns: dict[str, list[Any]] = {}
        scores: dict[str, dict[str, float]] = {}
        for language in self._served(hop):
            rows = self.evaluator.predict(self.model, self._sentences(hop, language, "test"), language, "test")
            scores[language] = self.evaluator.scores(rows)
            for name, values in rows.items():
                columns.setdefault(name, []).extend(values)
        training = self.store.facts(stage.train)["training"] if hop.index else UNTRAINED
        n = len(columns["split"])
        # The hop is the run's, not the stage's: it is set when a run takes the rows over.
        point = self._selected(hop, training)
        columns |= {"hop": [-1] * n, "step": [point["step"]] * n, "examples_seen": [point["examples"]] * n}
        table = predictions.table(columns)
        facts = {"kind": "evaluation", "run": self.run.id, **made_here(), "scores": scores, "training": training}
        if hop.index == 0:
            # Every run reads this first, and then knows its parameters without building a model.
            facts["parameters"] = sizes(self.model)
            encoder: Any = self.model.encoder
            facts["vocabulary"] = {"encoder": self.model.vocabulary, "kept": encoder.config.vocab_size}
        taken = self.store.path(stage.train) / POINTS

        def fill(folder: Path) -> None:
            predictions.write(folder / "predictions.parquet", table)
            # They outlive the weights, as the counters do.
            if taken.is_file():
                shutil.copyfile(taken, folder / POINTS)

        self.store.put(stage.evaluation, facts, fill)

    def attention(self, stage: Stage) -> Path | None:
        """Return the folder of what [CLS] attends to after a hop, made where the store lacks it; None if not asked for.

        Raises:
            UsageError: the encoder is of another family than BERT's.
        """
        if (key := stage.attention) is None:
            return None
        if not self.store.has(key):
            self._bring(stage.hop)
        return self._obtain(key, lambda: self._attend(stage.hop, key))

    def _attend(self, hop: Hop, key: str) -> None:
        config, dataset, summaries = self.run.config, self.run.dataset, {}
        for language in self._served(hop):
            examples, encoded = dataset.split(language, "test"), self.encodings.splits[language, "test"]
            whole = dataset.task.words
            numbers = word_numbers(examples, self.encodings.tokenizer, config.model.max_length, whole)
            shares = attention.of_pieces(self.model, encoded, self.device, config.trainer.precision.value)
            summaries[language] = attention.by_word(shares, numbers, examples)
        facts = {"kind": "attention", "hop": hop.name, "run": self.run.id, **made_here()}
        rows = attention.table(summaries)
        self.store.put(key, facts, lambda folder: predictions.write(folder / attention.FILE, rows))

    def _selected(self, hop: Hop, training: dict[str, Any]) -> dict[str, Any]:
        """Return the facts of the epoch whose weights a hop's training gave."""
        if not training["epochs"]:
            return {"step": 0, "examples": 0}
        best = self.run.trainer(hop).selection is Selection.best
        return training["epochs"][training["best_epoch"] - 1 if best else -1]
