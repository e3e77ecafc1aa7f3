"""The reason of an error in the words of the operating system or a server, without class names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from tailrace.schemas.config.secret import without_remembered

_INSIDE: Final = r"(?:\$+\w*)*"
"""A nested or anonymous class."""
_CLASS: Final = re.compile(
    r"(?:\b(?:\w+[.$]+)*[A-Z]\w*(?:Exception|Error|Warning|Failure)"
    r"|\b(?:\w+[.$]+)+(?:Exception|Error)|\bException(?=\s*:)"
    r"|\b(?:(?:\w+[.$]+)+|[A-Z])\w*Timeout(?=\s*[:(]|\s*$)"
    r"|\b(?:javax?|jdk|sun|scala|kotlin|org|com|net|io|software|py4j|pyspark|opensearchpy|sqlalchemy|pyiceberg|urllib3"
    r"|requests|httpx2?|httpcore2?|psycopg|botocore|confluent_kafka)(?:\.\w+)*[.$]+[A-Z]\w*)"
    rf"{_INSIDE}(?![\w$])(?:\(['\"]|\s*:)?\s*"
)
_UNRESOLVED: Final = (
    r"(?::\s+(?:[Tt]emporary failure in name resolution|[Nn]ame or service not known|nodename nor servname[\w ,]*))?"
)
_PACKAGE: Final = r"(?P<what>[a-z_]\w*(?:[./][a-z_]\w*)*)[./][A-Z][\w$]*"
_OPERANDS: Final = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (
            rf"\b(?:\w+[.$])*UnknownHostException:\s*[\"'(]?(?P<what>[^\s\"'():,;]+)[\"')]?{_UNRESOLVED}"
            r"(?=$|[\s:,;.)])",
            'unknown host "{}"',
        ),
        (r"\b(?:\w+[.$])*NoSuchFileException:\s*(?P<what>/\S*)", 'no such file: "{}"'),
        (r"\b(?:\w+[.$])*AccessDeniedException:\s*(?P<what>/\S*)", 'no permission for "{}"'),
        (
            rf"\b(?:\w+[.$])*(?:ClassNotFoundException|NoClassDefFoundError):\s*{_PACKAGE}",
            'package "{}" is not on the class path',
        ),
        (rf"\b[Cc]lass {_PACKAGE} not found", 'package "{}" is not on the class path'),
        (r"\bKafkaError\{[^\"]*\"(?P<what>[^\"]*)\"\}", "{}"),
        (r"\b(?:\w+[.$])*(?:Socket)?TimeoutException:?\s*(?P<what>)(?:null\s*)?$", "no answer in time"),
    )
)
"""Messages that are only a name or an object, and the sentence that each stands for."""
_EMPTY: Final = re.compile(r"\(\s*\)\s*:?\s*")
_OBJECT: Final = re.compile(r"<[^<>]* object at 0x[0-9a-f]+>[,:]?\s*")
_LONGEST: Final = 300


def without_classes(text: str) -> str:
    """Return a text as one line, without names of Java and Python classes or printed objects."""
    for pattern, sentence in _OPERANDS:
        text = pattern.sub(partial(_in_sentence, sentence), text)
    text = _EMPTY.sub("", _CLASS.sub("", _OBJECT.sub("", text)))
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


def _in_sentence(sentence: str, found: re.Match[str]) -> str:
    return sentence.format(found["what"].replace("/", ".") if "package" in sentence else found["what"])


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
