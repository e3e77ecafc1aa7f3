"""The status page in a real browser: one daemon, one page that stays open until the daemon is killed."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tailrace.cdc.dev.state import Servers, status
from tailrace.cdc.page.checks import Checks
from tailrace.cdc.page.history import EVERY_S
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.error_codes import CODES
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewRecord, ViewsTopic, now_ms
from tests.support.browser import accessible, browser, console, requested_urls, resize
from tests.support.daemon import Daemon, run_daemon, running, tailrace, wait_for_state, wait_until, write_config
from tests.support.servers import fresh_database

CELL, SECRET, DETAIL, PASSWORD = "Heron-7-Willow", "Rowan-3-Kettle", "Osprey-5-Copper", "Linnet-9-Tin"
VISIBLE_S = 5.0
"""A fault must be on the page within this time."""

_MORE = """[health]
listen = "127.0.0.1:PORT"
page = true
[warehouse]
uri = "jdbc:sqlite:FOLDER/catalog.db"
location = "FOLDER"
[views.orders]
table = "public.orders"
[views.spending]
query = "SELECT note, count(*) AS n FROM public.orders GROUP BY note"
key = ["note"]
"""


@dataclass
class Shown:
    """A daemon, its page in a browser, and what the tests change."""

    config_path: Path
    config: Config
    daemon: Daemon
    source: psycopg.Connection[Any]
    page: Chrome
    url: str

    @property
    def text(self) -> str:
        """The text that a person sees."""
        return str(self.page.execute_script("return document.body.innerText"))

    def text_of(self, selector: str) -> str:
        """The text of an element, read at once: an update replaces elements at any moment."""
        return str(self.page.execute_script("return document.querySelector(arguments[0]).innerText", selector))

    def fields(self) -> dict[str, str]:
        """Return the page's values by their names in the status."""
        script = (
            "return [...document.querySelectorAll('[data-field]')].map(each => [each.dataset.field, each.textContent])"
        )
        return {name: value for name, value in self.page.execute_script(script) if name}

    def view(self, name: str, error: str | None = None) -> None:
        """Write a view's record as the views job does, at the newest state."""
        cut = wait_for_state(self.config, self.source, tables=["public.orders"])
        record = ViewRecord(name, "warehouse", 3, cut, now_ms())
        ViewsTopic(self.config.kafka, Topics(self.config.kafka.prefix)).publish(replace(record, error=error))


def _checking_often(config: Path) -> None:
    """Run the daemon with a page that checks about every second, instead of every minute."""
    Checks.least_rest_s = Checks.rest_share = 1.0
    run_daemon(config)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def shown(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder, port = tmp_path_factory.mktemp("page"), _free_port()
    with ExitStack() as opened:
        page = opened.enter_context(browser())
        dsn = opened.enter_context(fresh_database(servers.dsn))
        source = opened.enter_context(psycopg.connect(dsn, autocommit=True))
        source.execute("CREATE TABLE orders (id int PRIMARY KEY, note text, price numeric(10, 2))")
        source.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        more = _MORE.replace("PORT", str(port)).replace("FOLDER", str(folder))
        secret = f'on_table_error = "divert"\nhash = ["public.items.note"]\nhash_salt = "{SECRET}"\n'
        with_password = dsn.replace("@", f":{PASSWORD}@")  # the server asks for none
        path = write_config(folder, with_password, servers.bootstrap, f"page{os.getpid()}", more, source=secret)
        config = load(path)
        daemon = opened.enter_context(running(path, program=_checking_often))
        wait_for_state(config, source)
        url = f"http://127.0.0.1:{port}/"
        page.get(url)
        found = Shown(path, config, daemon, source, page, url)
        found.view("orders")
        yield found


def _within(seconds: float, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)


def _json_status(shown: Shown) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tailrace("status", "--json", "--config", str(shown.config_path)).stdout)
    return found


def _named(status: dict[str, Any], name: str) -> str:
    value: Any = status
    parts = name.split("/")[1:]
    for part in parts:
        value = next(each for each in value if each["name"] == part) if isinstance(value, list) else value[part]
    return ("–" if parts[-1] == "generation" else "unknown") if value is None else str(value)


def test_the_values_equal_those_of_status(shown: Shown) -> None:
    shown.source.execute("INSERT INTO orders SELECT g, %s, 1 FROM generate_series(1, 300) g", (CELL,))
    shown.source.execute("INSERT INTO orders VALUES (1000, %s, 'NaN')", (CELL,))
    shown.view("orders")
    seen: dict[str, tuple[str, str]] = {}

    def equal() -> bool:
        before = _json_status(shown)
        fields = shown.fields()
        after = _json_status(shown)
        # values that did not change while the page was read
        steady = [name for name in fields if _named(before, name) == _named(after, name)]
        seen.clear()
        seen.update({name: (fields[name], _named(after, name)) for name in steady})
        return len(steady) == len(fields) and all(value == expected for value, expected in seen.values())

    try:
        wait_until(equal)
    except AssertionError:
        raise AssertionError(f"{seen}") from None
    assert len(seen) >= 9, seen
    assert seen["/topics/diverted"] == ("1", "1")
    assert seen["/topics/diverted_tables/public.orders/changes"] == ("1", "1")
    assert seen["/views/orders/generation"] == ("3", "3")


def test_updates_arrive_without_a_reload(shown: Shown) -> None:
    shown.page.execute_script("window.loadedOnce = true")
    row = "return [...document.querySelectorAll('#tables tbody tr')].map(row => row.innerText).join('|')"
    before = shown.page.execute_script(row)
    shown.source.execute("INSERT INTO items SELECT g, %s FROM generate_series(1, 1234) g", (CELL,))
    _within(VISIBLE_S, lambda: "1,234" in shown.page.execute_script(row))
    assert "1,234" not in before
    assert shown.page.execute_script("return window.loadedOnce")
    # a line needs two samples
    drawn = "return document.querySelectorAll('svg.chart .series').length"
    _within(3 * EVERY_S, lambda: shown.page.execute_script(drawn) == 3)


def test_a_parked_view_and_its_remedy_are_visible(shown: Shown) -> None:
    error = f"ERROR  TR-525  view spending: the query failed\nDETAIL {DETAIL}\nHINT   tailrace views resume spending"
    shown.view("spending", error)
    _within(VISIBLE_S, lambda: "View spending is parked" in shown.text)
    assert "tailrace views resume spending" in shown.text
    assert DETAIL not in shown.page.page_source
    shown.view("spending", f"java.lang.Exception: {DETAIL}")
    _within(VISIBLE_S, lambda: "The views job reported an error" in shown.text)
    assert DETAIL not in shown.page.page_source
    shown.view("spending")
    _within(VISIBLE_S, lambda: "is parked" not in shown.text)


def test_a_parked_table_links_to_its_codes_page_by_keyboard(shown: Shown) -> None:
    shown.source.execute("ALTER TABLE items DROP CONSTRAINT items_pkey; INSERT INTO items VALUES (1, 'b')")
    _within(2 * VISIBLE_S, lambda: "Table public.items is parked" in shown.text)
    shown.page.get(shown.url)  # so that nothing has the focus
    shown.page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    focused = shown.page.switch_to.active_element
    code = focused.text
    assert code in CODES
    focused.send_keys(Keys.ENTER)
    wait_until(lambda: shown.page.title.startswith(code))
    assert CODES[code].title in shown.text
    assert CODES[code].remedy in shown.text
    shown.page.back()
    wait_until(lambda: shown.page.execute_script("return document.documentElement.dataset.live") == "true")


def test_a_finding_of_the_check_appears_and_what_it_says_to_paste_mends_it(shown: Shown) -> None:
    row = "return [...document.querySelectorAll('#check tbody tr')].find(row => row.innerText.includes('TR-908'))"
    wait_until(lambda: "As tailrace check at" in shown.text)
    assert shown.page.execute_script(row) is None
    shown.source.execute("CREATE TABLE late (id int PRIMARY KEY)")
    wait_until(lambda: shown.page.execute_script(row) is not None)
    cells = shown.page.execute_script(f"{row}.innerText")
    assert all(part in cells for part in ("warning", "source", "In no publication: public.late.")), cells
    paste = shown.page.execute_script(f"{row}.querySelector('pre').innerText")
    assert "ADD TABLE" in paste
    code = shown.page.execute_script(f"{row}.querySelector('a').href")
    assert code == f"{shown.url}page/codes/TR-908"
    for line in paste.splitlines():
        shown.source.execute(line)
    wait_until(lambda: shown.page.execute_script(row) is None)
    assert "nothing stops the next start" in shown.text
    # that this daemon runs, reads the slot and serves its address is no finding
    found = shown.text_of("#check")
    assert not [code for code in ("TR-913", "TR-112") if code in found]
    assert console(shown.page) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1600])
def test_the_page_fits(shown: Shown, width: int, dark: bool) -> None:
    resize(shown.page, width, dark=dark)
    root = "document.documentElement"
    assert shown.page.execute_script(f"return {root}.scrollWidth <= {root}.clientWidth")
    ratios = shown.page.execute_script(_CONTRASTS)
    assert len(ratios) > 30
    assert min(ratios) >= 4.5  # WCAG 2.2, level AA


_CONTRASTS = """
const parts = (color) => color.match(/[\\d.]+/g).map(Number);
const light = (color) => parts(color).slice(0, 3).map((part) => part / 255)
  .map((part) => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4)
  .reduce((sum, part, n) => sum + part * [.2126, .7152, .0722][n], 0);
const ground = (each) => {
  for (; each; each = each.parentElement) {
    const [, , , alpha] = parts(getComputedStyle(each).backgroundColor);
    if (alpha !== 0) return getComputedStyle(each).backgroundColor;
  }
  return "rgb(255, 255, 255)";
};
return [..."p dd dt td th h2 h3 span a time".split(" ").flatMap((tag) => [...document.querySelectorAll(`main ${tag}`)])]
  .filter((each) => each.innerText && each.offsetParent)
  .map((each) => [light(getComputedStyle(each).color), light(ground(each))].sort((a, b) => b - a))
  .map(([high, low]) => (high + .05) / (low + .05));
"""


def test_a_screen_reader_finds_headings_names_and_the_state(shown: Shown) -> None:
    found = accessible(shown.page)
    headings = [name for role, name in found if role == "heading"]
    assert {"Source", "Slot", "Daemon", "Topics", "Views", "Tables", "Recent errors"} <= set(headings)
    assert "Check of the servers" in headings
    assert ("columnheader", "Generation") in found
    assert {name for role, name in found if role == "rowheader"} >= {"orders", "public.orders"}
    unnamed = [role for role, name in found if role in ("link", "progressbar", "img", "region", "figure") and not name]
    assert unnamed == []
    assert shown.page.find_element(By.CSS_SELECTOR, "[role=alert]")
    assert shown.text_of("[aria-live=polite]")


def test_the_page_is_whole_without_javascript(shown: Shown) -> None:
    shown.page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        shown.page.get(shown.url)
        source = shown.page.page_source
    finally:
        shown.page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        shown.page.get(shown.url)
    for part in (
        "public.orders",
        "Throughput",
        'http-equiv="refresh"',
        "Table public.items is parked",
        "Check of the servers",
    ):
        assert part in source


def test_nothing_secret_and_no_other_host(shown: Shown) -> None:
    with urllib.request.urlopen(shown.url) as answer:
        policy = answer.headers["Content-Security-Policy"]
        served = answer.read().decode()
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for text in (shown.page.page_source, served):
        assert not [each for each in (CELL, SECRET, DETAIL, PASSWORD) if each in text]
    own = urlsplit(shown.url).netloc
    urls = requested_urls(shown.page)
    assert any(url.endswith("/page/events") for url in urls)
    assert {urlsplit(url).netloc for url in urls} == {own}
    assert re.findall(r'(?:src|href)="([^/#][^"]*)"', served) == []
    assert console(shown.page) == []


def test_streams_are_bounded_and_a_slow_client_disturbs_nobody(shown: Shown) -> None:
    at = urlsplit(shown.url).netloc

    def opened() -> tuple[http.client.HTTPConnection, int]:
        connection = http.client.HTTPConnection(at, timeout=10)
        connection.request("GET", "/page/events")
        return connection, connection.getresponse().status

    # one is the browser's
    streams = [opened() for _ in range(16)]
    assert sorted(code for _, code in streams) == [200] * 15 + [503]
    with urllib.request.urlopen(f"{shown.url}livez") as answer:
        assert answer.status == 200
    # none of them reads its stream; the browser's page moves on
    before = shown.text_of("#foot time")
    _within(VISIBLE_S, lambda: shown.text_of("#foot time") != before)
    for connection, _ in streams:
        connection.close()

    def accepted() -> bool:
        connection, code = opened()
        connection.close()
        return code == 200

    wait_until(accepted)


@contextmanager
def _stopped(state_dir: Path) -> Iterator[None]:
    (kafka,) = (each.server.process for each in status(state_dir) if each.server.name == "kafka")
    os.kill(kafka.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(kafka.pid, signal.SIGCONT)


def test_a_stopped_broker_is_visible(shown: Shown, state_dir: Path) -> None:
    with _stopped(state_dir):
        _within(VISIBLE_S, lambda: "Kafka does not answer" in shown.text)
    wait_until(lambda: "Kafka does not answer" not in shown.text)


def test_a_killed_daemon_is_visible_and_the_page_comes_back_with_it(shown: Shown) -> None:
    shown.daemon.kill()
    _within(VISIBLE_S, lambda: "The daemon does not answer" in shown.text)
    assert "no answer" in shown.text
    with running(shown.config_path):
        wait_until(lambda: "The daemon does not answer" not in shown.text)
        wait_until(lambda: "streaming" in shown.text)
    # the failed connections are the browser's own entries
    assert [each for each in console(shown.page) if "net::ERR_" not in each] == []
