"""The reason of an error in the words of the operating system or a server, without class names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tailrace.schemas.config.secret import without_remembered

_CLASS: Final = re.compile(
    r"(?:\b(?:\w+[.$])*[A-Z]\w*(?:Exception|Error|Warning|Failure)"
    r"|\b(?:javax?|scala|org|com|net|io|py4j|pyspark|opensearchpy|sqlalchemy|pyiceberg|urllib3)(?:\.\w+)*[.$][A-Z]\w*)"
    r"\b(?:\(['\"]|\s*:)?\s*"
)
_OBJECT: Final = re.compile(r"<[^<>]* object at 0x[0-9a-f]+>[,:]?\s*")
_LONGEST: Final = 300


def without_classes(text: str) -> str:
    """Return a text as one line, without names of Java and Python classes or printed objects."""
    text = _CLASS.sub("", _OBJECT.sub("", text))
    return " ".join(text.split()).strip(" :;,.").removesuffix("')")


def readable(text: str) -> str:
    """Return another program's message as one line of at most 300 characters, without secrets and class names."""
    # Secrets first: what comes after could leave a part of one.
    return without_classes(without_remembered(text))[:_LONGEST]


def reason(error: BaseException) -> str:
    """Return the root cause of an error: the operating system's message, else the innermost text."""
    chain = list(_causes(error))
    system = next((each for each in reversed(chain) if isinstance(each, OSError) and each.strerror), None)
    if system is not None:
        named = f': "{without_remembered(str(system.filename))}"' if system.filename else ""
        return f"{_sentence(readable(str(system.strerror)))}{named}"
    texts = (readable(str(each)) for each in reversed(chain))
    return _sentence(next((text for text in texts if text), "no reason given"))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; HTTP clients have those in `info`, `reason` or their arguments."""
    seen: set[int] = set()
    left: list[BaseException] = [error]
    while left:
        each = left.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        carried = (getattr(each, name, None) for name in ("info", "reason"))
        inner = (each.__cause__, each.__context__, *carried, *each.args)
        left += [found for found in inner if isinstance(found, BaseException)]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text[1:2].islower() else text
