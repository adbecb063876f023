"""What Hydra and OmegaConf say of a wrong override, as one line with the nearest known name."""

from __future__ import annotations

import re

from yaml import YAMLError

from xclrun.compose.keys import expansions_known, nearest, no_expansion
from xclrun.config.files import choices
from xclrun.core.errors import did_you_mean

# What OmegaConf says of a value, and what is said instead.
VALUES = (
    (r"Value '(.*)' of type '\w+' could not be converted to Float", r"'\1' is not a number"),
    (r"Value '(.*)' of type '\w+' could not be converted to Integer", r"'\1' is not a whole number"),
    (r"Value '(.*)' is not a valid bool \(type \w+\)", r"'\1' is neither true nor false"),
    (r"Invalid value '(.*)', expected one of \[(.*)\]", r"'\1' is none of \2"),
    (r"Invalid value assigned: \w+ is not a ListConfig, list or tuple\.", "must be a list, as in [a,b]"),
    (r"Invalid type assigned: .* value: (.*)", r"'\1' is one value; set the keys below it"),
    (
        r"Cannot convert 'list' to string: '(.*)'",
        r"\1 is a list; give one value, or several without brackets as a sweep",
    ),
    (r"field '.*' is not Optional", "cannot be null"),
    (
        r"KeyError raised while resolving interpolation: \"Environment variable '(.*)' not found\"",
        r"the environment variable \1 is not set; set it, or give a default value as in ${oc.env:\1,VALUE}",
    ),
    # A map that is null: OmegaConf adds nothing to it.
    ("'NoneType' object has no attribute 'get'", "is null, and takes no entries; give what it is a part of as a whole"),
)
# Group → what else can be given than its choices.
OWN = "; one of your own: --plugin FILE.py or --config-dir DIR"
BESIDES = {"order": "; or a list of languages, as in order=[en,de]", "strategy": OWN, "dataset": OWN}


def explain(error: BaseException) -> str:
    """Return one line for an exception of Hydra or OmegaConf."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    text = "\n".join(str(e) for e in chain)
    return (
        _grammar(chain)
        or _unknown_choice(text)
        or _unknown_key(text)
        or _no_text(text)
        or _wrong_value(text)
        or _twice(text)
    ) or _first_line(error)


def explain_yaml(error: YAMLError) -> str:
    """Return one line for a YAML file that cannot be read: the place, and what is wrong there."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    if "tag:yaml.org,2002:python" in problem:
        problem = "tags such as !!python/… would run code, and are never read"
    place = "" if mark is None else f"{mark.name}:{mark.line + 1}: "
    return f"{place}cannot be read as YAML ({problem})"


def _grammar(chain: list[BaseException]) -> str | None:
    for error in chain:
        override = getattr(error, "override", None)
        if override is not None:
            reason = next((line for line in str(error).splitlines() if not line.startswith("Error parsing")), "")
            reason = re.sub(r" expecting \{.*", "", reason)
            # The lexer gives the whole override, and points below the place.
            reason = re.sub(r"^LexerNoViableAltException: .*", "a blank or sign that needs quotes", reason)
            how = """values are set as key=value, or "key='a value'" where they hold blanks or signs"""
            return f"'{override}' cannot be read ({reason}); {how}"
    return None


def _unknown_choice(text: str) -> str | None:
    if found := re.search(r"Could not find '([\w/]+)/([^/']+)'", text):
        of, choice = found.groups()
        known = expansions_known() if of == "strategy/expansion" else choices().get(of, {})
        group = of.replace("strategy/expansion", "strategy.expansion")
        return f"{group}={choice}: unknown; {did_you_mean(choice, known, limit=40)}{BESIDES.get(of, '')}"
    if found := re.search(r"Could not override '([^']+)'\.\s*No match in the defaults list", text):
        if found[1] == "strategy/expansion":
            return f"strategy.expansion: {no_expansion()}"
        return f"no group is called '{found[1]}'; {did_you_mean(found[1], choices())}"
    return None


def _unknown_key(text: str) -> str | None:
    if found := re.search(r"Could not override '([^']+)'", text):
        return f"no key is called '{found[1]}'; {nearest(found[1])}"
    if found := re.search(r"Key '([^']+)' (?:is not in struct|not in '\w+')(?:.|\n)*?full_key: (\S+)", text):
        return f"no key is called '{found[2]}'; {nearest(found[2])}"
    return None


def _no_text(text: str) -> str | None:
    """Of names in a map, such as those of ``dataset.parts``: null, numbers and true or false are none."""
    if found := re.search(r"Error merging override \+?([\w.]+)=(?:.|\n)*Incompatible key type", text):
        return f"{found[1]}: null cannot be a name; take a word that begins with a letter"
    if found := re.search(r"Key (\S+) \(\w+\) is incompatible with \(str\)(?:.|\n)*?full_key: (\S+)\.\1", text):
        return f"{found[2]}: {found[1].lower()} cannot be a name; take a word that begins with a letter"
    return None


def _wrong_value(text: str) -> str | None:
    if found := re.search(r"^(.*)\n\s*full_key: (\S+)", text, re.MULTILINE):
        what = found[1].strip()
        for pattern, said in VALUES:
            what = re.sub(pattern, said, what)
        return f"{found[2]}: {what}"
    return None


def _twice(text: str) -> str | None:
    if found := re.search(r"already at '([^']+)'|Multiple values for ([\w/]+)\.", text):
        return f"{found[1] or found[2]} is there already; leave out the +"
    return None


def _first_line(error: BaseException) -> str:
    first, *more = (str(error).strip() or type(error).__name__).splitlines()
    # Where the first line only announces the second.
    return f"{first} {more[0].strip()}" if first.endswith(":") and more else first
