"""What Hydra and OmegaConf say of a wrong override, as one line with the nearest known name."""

from __future__ import annotations

import re

from xclrun.compose import known_keys
from xclrun.config import choices
from xclrun.errors import did_you_mean


def explain(error: BaseException) -> str:
    """Return one line for an exception of Hydra or OmegaConf."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    text = "\n".join(str(e) for e in chain)
    return _unknown_choice(text) or _unknown_key(text) or _wrong_value(text) or _grammar(text) or _first_line(error)


def _unknown_choice(text: str) -> str | None:
    if found := re.search(r"Could not find '([\w/]+)/([^/']+)'", text):
        group, choice = found.groups()
        return f"{group}={choice}: {did_you_mean(choice, choices().get(group, {}), limit=40)}"
    if found := re.search(r"Could not override '([^']+)'\.\s*No match in the defaults list", text):
        return f"no group is called '{found[1]}'; {did_you_mean(found[1], choices())}"
    return None


def _unknown_key(text: str) -> str | None:
    if found := re.search(r"Could not override '([^']+)'", text):
        return f"no key is called '{found[1]}'; {_near(found[1])}"
    if found := re.search(r"Key '([^']+)' (?:is not in struct|not in '\w+')(?:.|\n)*?full_key: (\S+)", text):
        return f"no key is called '{found[2]}'; {_near(found[2])}"
    return None


def _near(key: str) -> str:
    known = [*known_keys(), *(g for g in choices() if "/" not in g)]
    siblings = [k for k in known if k.startswith(key.rpartition(".")[0] + ".")] if "." in key else []
    return did_you_mean(key, siblings or known)


def _wrong_value(text: str) -> str | None:
    if found := re.search(r"^(.*)\n\s*full_key: (\S+)", text, re.MULTILINE):
        what = found[1].strip()
        what = re.sub(r"Value '(.*)' of type '(\w+)' could not be converted to (\w+)", r"'\1' is no \3", what)
        what = re.sub(r"is no Float", "is no number", what)
        what = re.sub(r"is no Integer", "is no whole number", what)
        what = re.sub(r"is no Boolean", "is neither true nor false", what)
        what = re.sub(r"Invalid value '(.*)', expected one of \[(.*)\]", r"'\1' is none of \2", what)
        return f"{found[2]}: {what}"
    return None


def _grammar(text: str) -> str | None:
    if found := re.search(r"Error parsing override '(.*)'\n(.*)", text):
        return (
            f"'{found[1]}' cannot be read ({found[2]}); values are set as key=value, and quoted where they hold = or ,"
        )
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
