"""Encoders of all families: built from their configs with random weights, trained, stopped, continued, cut, refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.strategy.real import StopAfter, files, untrained
from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.model.encoder import check_settings, pretrained_encoder
from xclrun.model.families import FAMILIES, UNFIT
from xclrun.model.folder import check_folder
from xclrun.model.structure import is_embedding, layer
from xclrun.plan import Run
from xclrun.train.encodings import encodings
from xclrun.train.stop import Stopped

from .encoders import ENDED, FURTHER, LAYERS, tokenizer, write_family
from .pretrained import CONFIG, write_encoder

# Libraries that import what is going out of use.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

Make = Callable[..., Run]
Do = Callable[..., Run]
# One of each build: dropout's and layers' names, no types, sinusoids or rotations, several lists of layers, a table of
# pieces with two names, causal.
FEW = ("distilbert", "xlm", "modernbert", "mt5", "llama")
EACH = [pytest.param(name, marks=() if name in FEW else pytest.mark.full) for name in FAMILIES]
# The first hop of er is naive's.
STRATEGIES = ("er", "lang_spec_enc", "lang_spec_ada_f")


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a family's encoder, written once."""
    root = tmp_path_factory.mktemp("families")

    def get(family: str) -> Path:
        return root / family if (root / family).is_dir() else write_family(family, root / family)

    return get


@pytest.fixture
def plan(make_run: Make, folder_of: Callable[[str], Path]) -> Callable[..., Run]:
    """Plan a run of one epoch with a family's encoder."""

    def make(family: str, *overrides: str, **options: Any) -> Run:
        on = "last" if FAMILIES[family].causal else "first"
        values = (
            f"model.path={folder_of(family)}",
            f"model.name={family}",
            f"model.label_on={on}",
            "model.max_length=24",
        )
        return make_run(*values, "order=[en,de]", "trainer.epochs=1", *overrides, **options)

    return make


def fits(family: str, strategy: str) -> bool:
    facts = FAMILIES[family]
    return {"lang_spec_enc": facts.layers_apart, "lang_spec_ada_f": facts.adapted}.get(strategy, True)


@pytest.mark.some_cases("xlm-lang_spec_enc", "llama-lang_spec_ada_f")
@pytest.mark.parametrize(("family", "strategy"), [(family, name) for family in FAMILIES for name in STRATEGIES])
# What the library adapters hands to T5's layers is of an older name.
@pytest.mark.filterwarnings("ignore:`past_key_value` is deprecated:FutureWarning")
def test_a_family_learns_and_goes_on_where_it_was_stopped(family: str, strategy: str, plan: Any, do: Do) -> None:
    values = (f"strategy={strategy}", "model.trim_vocabulary=true")
    if not fits(family, strategy):
        with pytest.raises(UsageError, match=rf"^strategy={strategy}: .*{FAMILIES[family].title}"):
            plan(family, *values)
        return
    whole = do(plan(family, *values, outputs="whole"))
    stopped = plan(family, *values, outputs="stopped")
    after = StopAfter(7)
    with pytest.raises(Stopped):
        do(stopped, after, after.stop)
    assert files(do(stopped)) == files(whole)


ODD: list[tuple[str, dict[str, Any], str]] = [
    ("distilbert", {"hidden_dim": "x"}, ""),
    ("distilbert", {"n_heads": 3}, ".*3"),
    ("distilbert", {"activation": "nope"}, ".*nope"),
    ("llama", {"hidden_act": "nope"}, ".*nope"),
    ("llama", {"num_key_value_heads": -1}, ""),
    ("llama", {"rope_scaling": "x"}, ""),
    ("modernbert", {"vocab_size": []}, ""),
    ("modernbert", {"initializer_range": []}, ""),
]


@pytest.mark.some_cases
@pytest.mark.parametrize(("family", "change", "cause"), ODD)
def test_settings_that_make_no_encoder_are_refused_in_one_line(
    family: str, change: dict[str, Any], cause: str, folder_of: Any, tmp_path: Path
) -> None:
    """The library checks few of them: it ends in whatever Python or torch does not know how to compute."""
    folder = shutil.copytree(folder_of(family), tmp_path / family)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
    with pytest.raises(UsageError, match=rf"^model.path=\S+ the encoder cannot be read \({cause}[^\n]+\)$"):
        pretrained_encoder(ModelConfig(name=family, path=str(folder), max_length=24))


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("deberta-v2", FURTHER["deberta-v2"], None),
        ("llama", {"num_key_value_heads": 1}, None),
        (
            "bert",
            {"hiden_act": "relu"},
            r"model\.settings\.hiden_act: bert has no such setting; did you mean 'hidden_act'",
        ),
        (
            "bert",
            {"hidden_act": "nope"},
            r"model\.family=bert model\.settings=.*: the encoder cannot be built \(.*nope",
        ),
    ],
)
def test_settings_of_a_new_encoder_are_checked_by_building_it(
    family: str, settings: dict[str, Any], message: str | None
) -> None:
    shape = {"hidden_size": 16, "hidden_layers": 1, "attention_heads": 2, "intermediate_size": 24, "vocab_size": 30}
    model = ModelConfig(name="new", family=family, settings=settings, **shape)
    if message is None:
        check_settings(model)
        return
    with pytest.raises(UsageError, match=rf"^{message}[^\n]*$"):
        check_settings(model)


def library(family: str, folder: Path) -> Any:
    """Return the encoder as a user of the library would load it."""
    from transformers import AutoModel, MT5EncoderModel, T5EncoderModel, UMT5EncoderModel

    reference = {"t5": T5EncoderModel, "mt5": MT5EncoderModel, "umt5": UMT5EncoderModel}
    return reference.get(family, AutoModel).from_pretrained(folder, use_safetensors=True).eval()


@pytest.mark.some_cases
@pytest.mark.parametrize("family", EACH)
def test_states_are_those_of_the_library_whatever_stands_beside(family: str, plan: Any, folder_of: Any) -> None:
    """Of a batch with padding: [CLS], or the last piece, and a piece of each word, as of the plain text alone."""
    run = plan(family)
    model, result = untrained(run).eval(), encodings(run).splits["en", "test"]
    batch = result.batch(range(len(result)))
    assert 0 in batch.attention_mask
    encoder, pieces = library(family, folder_of(family)), tokenizer("bert")
    with torch.no_grad():
        features = model.encode(batch)
        for i, example in enumerate(run.dataset.split("en", "test")):
            text = " ".join(example.tokens)
            if FAMILIES[family].causal or family in ENDED:
                pieces = tokenizer("t5" if family in ENDED else "bytes")
            # The space that stands before every other word too.
            values = pieces(" " + text if FAMILIES[family].causal else text, return_tensors="pt")
            states = encoder(values["input_ids"], attention_mask=values["attention_mask"]).last_hidden_state[0]
            torch.testing.assert_close(features.cls[i], states[-1 if model.last else 0], atol=1e-5, rtol=1e-4)
            words = values.word_ids() if not FAMILIES[family].causal else None
            last = features.words[i, len(example.tokens) - 1]
            at = len(states) - 1 if words is None else words.index(len(example.tokens) - 1)
            torch.testing.assert_close(last, states[at], atol=1e-5, rtol=1e-4)
    assert model.last == (FAMILIES[family].causal or family in ENDED)


@pytest.mark.parametrize("family", EACH)
def test_names_say_what_the_modules_are(family: str, plan: Any) -> None:
    """Layers are the modules of the outermost lists as long as there are layers; the table of pieces is embedded."""
    encoder: Any = untrained(plan(family)).encoder
    lists = {n for n, m in encoder.named_modules() if isinstance(m, nn.ModuleList) and len(m) == LAYERS}
    outer = {n for n in lists if not any(n.startswith(f"{other}.") for other in lists)}
    assert bool(outer) == FAMILIES[family].layers_apart
    expected = {
        f"encoder.{n}.{i}.{p}": i + 1
        for n in outer
        for i, module in enumerate(encoder.get_submodule(n))
        for p, _ in module.named_parameters()
    }
    names = {f"encoder.{name}": p for name, p in encoder.named_parameters()}
    if outer:
        assert {name: layer(name) for name in names if layer(name)} == expected
    tables = {name for name, p in names.items() if is_embedding(name)}
    assert not tables & expected.keys()
    assert any(names[name] is encoder.get_input_embeddings().weight for name in tables)
    # There are no other tables, except for relative positions.
    modules = dict(encoder.named_modules())
    rest = names.keys() - tables - expected.keys()
    remaining = {n for n in rest if isinstance(modules[n.removeprefix("encoder.").rpartition(".")[0]], nn.Embedding)}
    relative = {"deberta-v2": "rel_embeddings", "mpnet": "relative_attention_bias"}.get(family)
    assert remaining == ({f"encoder.encoder.{relative}.weight"} if relative else set())


@pytest.mark.some_cases
@pytest.mark.parametrize("family", EACH)
def test_a_trimmed_vocabulary_changes_no_state(family: str, plan: Any) -> None:
    states, rows = [], []
    for trim in ("false", "true"):
        run = plan(family, f"model.trim_vocabulary={trim}", "strategy=lang_spec_embed")
        result, model = encodings(run), None
        from xclrun.model.network import build

        model = build(run.config.model, result.tokenizer, 3, 4, 1, result.token_ids).eval()
        rows.append(model.encoder.get_input_embeddings().num_embeddings)  # type: ignore[operator,union-attr]
        with torch.no_grad():
            states.append(model.encode(result.splits["de", "dev"].batch(range(4))).words)
    assert rows[1] < rows[0]
    assert torch.equal(*states)


@pytest.mark.parametrize("name", [*UNFIT, "deberta-v4", None])
def test_a_family_that_cannot_serve_is_refused_with_its_reason(name: str | None, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "folder")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"model_type": name}))
    reason = f"the family {name} cannot be used: it {UNFIT.get(str(name))}"
    if name not in UNFIT:
        reason = "config.json has no model_type"
    if name == "deberta-v4":
        reason = "the family deberta-v4 is not tested with xclrun; did you mean 'deberta-v2'?"
    with pytest.raises(UsageError) as raised:
        check_folder(folder, "model.path=X", ModelConfig(name="mine", path=str(folder)))
    assert str(raised.value).startswith(f"model.path=X: {reason}")


def test_what_a_family_cannot_do_is_told_while_planning(plan: Any) -> None:
    for on in ("first", "all"):
        with pytest.raises(UsageError, match=rf"^model\.label_on={on}: Llama has causal attention, .*=last$"):
            plan("llama", f"model.label_on={on}")
    plan("llama", "model.label_on=first", "dataset.task=sequence_class")
    with pytest.raises(UsageError, match=r"^evaluate\.attention=true: not supported for XLM"):
        plan("xlm", "evaluate.attention=true")
    with pytest.raises(UsageError, match=r"^model\.layers=3: the encoder has 2 layers"):
        plan("distilbert", "model.layers=3")
    with pytest.raises(UsageError, match=r"^model\.max_length=41: the encoder of .* has 40 positions"):
        plan("modernbert", "model.max_length=41")
    plan("mt5", "model.max_length=4100")
    with pytest.raises(UsageError, match=r"^strategy=lang_spec_ada_t: .* does not support XLM's family; "):
        plan("xlm", "strategy=er", "strategy.expansion=lang_spec_ada_t")


def row(kind: str) -> str:
    """Return a family's line in docs/encoders.md, from what the tests above have run and refused."""
    facts = FAMILIES[kind]
    state = "last subword" if facts.causal or kind in ENDED else "[CLS]"
    marks = ["yes" if fits(kind, strategy) else "no" for strategy in STRATEGIES[1:]]
    attention = "causal" if facts.causal else "bidirectional"
    return f"| `{kind}` | {facts.title} | {attention} | {state} | {' | '.join(marks)} |"


def test_the_page_has_each_family_and_each_reason() -> None:
    page = (Path(__file__).parents[2] / "docs" / "encoders.md").read_text(encoding="utf-8")
    listed = [line for line in page.splitlines() if line.startswith("| `")]
    assert listed[: len(FAMILIES)] == [row(kind) for kind in FAMILIES]
    reasons: dict[str, list[str]] = {}
    for kind, why in UNFIT.items():
        reasons.setdefault(why, []).append(kind)
    refused = [f"| {', '.join(f'`{kind}`' for kind in kinds)} | it {why} |" for why, kinds in reasons.items()]
    assert listed[len(FAMILIES) :] == refused
