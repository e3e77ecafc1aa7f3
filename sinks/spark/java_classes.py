"""Java's classes by their full names, with fewer questions to Java than py4j asks.

Each part of a name such as `jvm.org.apache` is a question at each use. Before Java answers that it is no class, it
searches all jars, which takes a millisecond.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaClass, JavaMember

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IMPORTED: Final = (
    "org.apache.spark.api.python.PythonErrorUtils",
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
    "org.apache.spark.sql.functions",
)
"""What PySpark uses by its name without a package: Java searches for that, too, before it looks at the imports."""

_NAMED: Final = (
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.SparkSession",
    "org.apache.spark.sql.internal.SQLConf",
    "org.apache.spark.util.Utils",
)
"""What PySpark names in full."""

_TYPES: Final = "py4j.reflection.TypeUtil"
"""What PySpark asks for the kind of each exception, up to ten times."""


class StaticClass(JavaClass):  # type: ignore[misc]  # py4j has no types
    """A class whose static methods are looked up once: for each answer, Java copies all methods of the class."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            setattr(self, name, found)
        return found


def java_class(jvm: Any, name: str) -> Any:
    """Return the class of this full name. That there is none is only noticed when it is used, as a Py4JError.

    `jvm` is py4j's view of Java, which a session and its context have.
    """
    return StaticClass(name, jvm._gateway_client)


def keep_classes(session: SparkSession) -> None:
    """Put the classes that PySpark uses most where it finds them without a question."""
    jvm: Any = session._jvm
    for name in _IMPORTED:
        setattr(jvm, name.rpartition(".")[2], java_class(jvm, name))
    for name in _NAMED:
        setattr(jvm, name, java_class(jvm, name))
    jvm.py4j = SimpleNamespace(reflection=SimpleNamespace(TypeUtil=java_class(jvm, _TYPES)))
