"""The example of `runyard demo`, deployed and run once the service answers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx

from cli.api.addresses import address_in, served_at
from cli.api.client import AS_STUDIO, Client
from cli.deployments.deploy import deploy
from cli.deployments.project import Project
from cli.deployments.report import PrintLine
from cli.errors import CommandFailed
from cli.machine.procfile import PROJECT
from shared.settings import Settings

EXAMPLE = PROJECT / "examples" / "chat"
NAME = "chat"
QUESTION = "What can you do?"
LINE = 100  # maximum characters printed of an event


def demo(settings: Settings, print_line: PrintLine) -> None:
    """Deploy the example and stream one run of it with the public SDK. Raises CommandFailed if no event arrives."""
    assert settings.api_key is not None
    project = Project.read(EXAMPLE)
    with Client(settings.url, settings.api_key) as client:
        record = deploy(client, project, NAME, print_line)
    print_line("")
    print_line(f"{NAME} is DEPLOYED. One run of it, streamed with langgraph_sdk:")
    graph_id = next(iter(project.config["graphs"]))
    address = served_at(settings.url, NAME, address_in(record))
    events = stream(address, settings.api_key, graph_id, print_line)
    if not events:
        raise CommandFailed("The run ended without an event. The lines above tell why.")


def stream(url: str, key: str, graph_id: str, print_line: PrintLine) -> int:
    """Run the graph on a new thread and print each event on arrival. Returns the number of events."""
    from langgraph_sdk import get_sync_client  # its import takes half a second

    started = time.monotonic()
    client = get_sync_client(url=url, api_key=key, headers=AS_STUDIO)
    count, failed = 0, None
    try:
        thread = client.threads.create()
        chunks = client.runs.stream(
            thread["thread_id"],
            graph_id,
            input={"messages": [{"role": "user", "content": QUESTION}]},
            stream_mode=["updates", "messages-tuple"],
        )
        for chunk in chunks:
            count += 1
            print_line(
                f"  {time.monotonic() - started:6.3f} s  {chunk.event:<10} {shorten(essence(chunk.event, chunk.data))}"
            )
            failed = chunk.data if chunk.event == "error" else failed
    except httpx.HTTPError as error:
        raise CommandFailed(f"The run failed: {error}") from error
    if failed:
        raise CommandFailed(f"The run failed: {failed}")
    return count


def essence(event: str, data: Any) -> str:
    """Return the text of a message, or the JSON of another event."""
    if event.startswith("messages") and isinstance(data, list) and data:
        return repr(data[0].get("content", ""))
    return json.dumps(data, ensure_ascii=False)


def shorten(text: str) -> str:
    return text if len(text) <= LINE else text[: LINE - 1] + "…"


def addresses(settings: Settings, deployments: list[str]) -> list[str]:
    """Return the lines that the demo prints once the service runs: addresses, keys, the next command."""
    rows = [
        f"Console         {settings.url}/",
        f"Control plane   {settings.url}/v2/deployments",
        *(f"Deployment      {settings.url}/d/{name}" for name in deployments),
        f"API docs        {settings.url}/docs",
        *_other_machines(settings),
        f"API key         in {relative(settings.data_dir / 'admin.key')}"
        if (settings.data_dir / "admin.key").exists()
        else "API key         the one in RUNYARD_API_KEY",
        "Another key     runyard keys create --name NAME --role ROLE",
        "Deploy yours    runyard deploy DIRECTORY",
    ]
    return ["", *rows, ""]


def _other_machines(settings: Settings) -> list[str]:
    """Return a line for users of other machines, if web listens on every address and no public URL is set."""
    if not settings.listens_everywhere or settings.url != settings.local_url:
        return []
    url = f"http://ADDRESS:{settings.port}"
    return [f"Other machines  {url}/, unencrypted; ADDRESS is this machine's. There: runyard login {url}"]


def relative(path: Path) -> str:
    """Return the path relative to the working directory if it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
