"""The tutorial, and the guides for views, as their reader follows them: all in one demo of `tailrace dev up`.

The guides for the source are in `tests/integration/test_documentation.py`. `docs/how-to/read-views.md` is run by
`test_end_to_end.py`, `docs/how-to/layout-of-views.md` by `test_layouts.py`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tailrace.cdc.dev import state
from tailrace.cdc.launch import java
from tailrace.cdc.launch.jars import jars
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tests.support.daemon import ROOT, wait_until
from tests.support.documentation import Reader
from tests.support.warm_jvm import warm_jvm


def _function(name: str, command: str) -> dict[str, str]:
    """Return the environment that makes a function of the shell a program of that name."""
    return {f"BASH_FUNC_{name}%%": f'() {{ {command} "$@"; }}'}


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """A reader in a folder that has the `.venv` of this clone, and no server yet; it needs no fixed port."""
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    any_port = {f"TAILRACE__HEALTH__{key}": "127.0.0.1:0" for key in ("LISTEN", "VIEWS_LISTEN")}
    # under the full load, the views catch up slowly while other tests run
    examples = {"tailrace dev up": "tailrace dev up --rate 5"}
    return Reader(tmp_path, "", {**any_port, **_function("make", f"command make -C {ROOT}")}, examples)


@pytest.mark.timeout(3000)
def test_tutorial_and_guides_for_views(reader: Reader) -> None:
    folder = reader.folder / ".tailrace"
    try:
        with reader.page("tutorial/first-view.md") as page:
            shown = page.run_next(seconds=2000)
            assert "/  # the status page" in shown
            assert re.search(
                r"^verified countries: (\d+) rows of the source at 0/\w+ .* and \1 of the view$", shown, re.M
            )
            config = load(reader.folder / "tailrace.toml")
            reader.dsn = config.source.dsn.get_secret_value()
            shown_page = page.run_next()
            assert {"order_documents", "spending"} <= set(re.findall(r"\w+", shown_page))
            assert len(re.findall(r"^.*\borders id=", shown_page, re.MULTILINE)) == 5
            change_slowly(reader)
            # each job would start a JVM, which takes longer than most of them work
            with warm_jvm(config, reader.folder) as jvm:
                reader.environment = {**reader.environment, **jvm}
                (search,) = (line for line in shown.splitlines() if line.startswith("curl "))
                document = reader.shell(search)
                assert '"product"' in document
                assert "Chlo" in document
                page.run_next()
                page.run_next(seconds=700)
                renamed = reader.shell(search.replace("Chlo%C3%A9", "Lovelace"))
                assert "Ada Lovelace" in renamed, renamed
                assert page.run_next().count("'valid_from'") == 3
                assert _equal(page.run_next(seconds=900)) >= set(config.views) - {"alerts"}
                assert "orders" in page.run_next(seconds=600)
                end(reader, "load")  # the guides need no changes, and the processor is needed for their jobs
                verify_page(reader)
                operate_page(reader, config)
            page.run_next()
        assert not [each for each in state.status(folder) if each.alive]
    finally:
        state.stop_servers(folder, purge=True)


def change_slowly(reader: Reader) -> None:
    """Replace the demo's load by one of a changed row every twenty seconds, on average.

    The job of the views is then idle most of the time; under the full load, it uses both cores until the test ends.
    """
    command = [sys.executable, "-m", "tailrace.cdc.dev.demo", "load", "--dsn", reader.dsn, "--rate", "0.05"]
    state.start_program(reader.folder / ".tailrace", "load", command)


def end(reader: Reader, name: str) -> None:
    """End a program of the demo and wait for its end."""
    (program,) = (each.server for each in state.status(reader.folder / ".tailrace") if each.server.name == name)
    psutil.Process(program.process.pid).send_signal(signal.SIGTERM)
    wait_until(lambda: not psutil.pid_exists(program.process.pid), 120)


def _equal(shown: str) -> set[str]:
    """Return the views that `verify` has found to be equal, those of a staged generation, too."""
    return set(re.findall(r"^(\w+)[^:\n]*: equal", shown, re.MULTILINE))


def verify_page(reader: Reader) -> None:
    with reader.page("how-to/verify.md") as page:
        assert {"orders", "products_search"} <= _equal(page.run_next())
        assert {"order_documents", "spending", "price_history"} <= _equal(page.run_next(seconds=900))
        assert "whole" in page.run_next()
        assert _equal(page.run_next(seconds=900)) == {"orders", "spending"}
        page.run_next()
        assert load(reader.folder / "tailrace.toml").verify.every_s == 3600
        assert "nothing to repair" in page.run_next(typed="y\n", seconds=900)


def operate_page(reader: Reader, config: Config) -> None:
    """The page's job by hand needs the leases of its views, so the demo's job is stopped first."""
    program = str(java.find_java("Kafka", java.KAFKA).executable)
    tool = [program, "-cp", os.pathsep.join(map(str, jars("kafka"))), "kafka.admin.ConfigCommand"]
    reader.environment = {
        **reader.environment,
        **_function("kafka-configs", shlex.join(tool)),
    }
    reader.examples = {
        "localhost:9092": config.kafka.bootstrap,
        "app.public.orders": f"{config.kafka.prefix}.public.orders",
    }
    end(reader, "views")
    with reader.page("how-to/operate-views.md") as page:
        page.run_next(seconds=600)
        assert "Completed updating config for topic" in page.run_next()
