"""A client that openapi-python-client generates from the API document."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

URL, KEY = os.environ["DEPLOYMENT_URL"], os.environ["DEPLOYMENT_KEY"]
BIN = Path(sys.executable).parent
SERVICE = "{0.scheme}://{0.netloc}".format(urlsplit(URL))


def document(url: str) -> Path:
    """Fetch the API document at this address, with the key."""
    file = Path(tempfile.mkdtemp()) / "openapi.json"
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/openapi.json", headers={"X-Api-Key": KEY})
    ) as answer:
        file.write_bytes(answer.read())
    return file


def generated(url: str, name: str) -> tuple[str, Path]:
    """Generate a package of this name. Returns what the generator printed, and the folder of the package."""
    file = document(url)
    folder = file.with_name(name)
    done = subprocess.run(
        [
            BIN / "openapi-python-client",
            "generate",
            "--path",
            file,
            "--output-path",
            folder,
            "--meta",
            "none",
        ],
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr, folder


async def check_nothing_of_a_deployments_document_is_left_out():
    printed, folder = generated(URL, "of_deployment")
    assert "Warning" not in printed, printed
    operations = sum(
        len(path) for path in json.loads((folder.parent / "openapi.json").read_text())["paths"].values()
    )
    modules = [file for file in folder.glob("api/*/*.py") if file.name != "__init__.py"]
    assert len(modules) == operations


async def check_nothing_of_the_services_document_is_left_out():
    printed, _ = generated(SERVICE, "of_service")
    assert "Warning" not in printed, printed


async def check_it_creates_a_thread():
    _, folder = generated(URL, "client_of_deployment")
    sys.path.insert(0, str(folder.parent))
    client = importlib.import_module(f"{folder.name}.client").AuthenticatedClient(
        base_url=URL, token=KEY, prefix="", auth_header_name="X-Api-Key", raise_on_unexpected_status=True
    )
    threads = importlib.import_module(f"{folder.name}.api.threads.post_threads")
    models = importlib.import_module(f"{folder.name}.models")
    thread = threads.sync(
        client=client, body=models.ThreadCreate.from_dict({"metadata": {"made": "by a generated client"}})
    )
    assert isinstance(thread, models.Thread), thread
    assert thread.metadata.to_dict() == {"made": "by a generated client"}
    read = importlib.import_module(f"{folder.name}.api.threads.get_threads_thread_id")
    assert read.sync(thread.thread_id, client=client).thread_id == thread.thread_id
