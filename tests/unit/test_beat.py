"""Beat while Redis is away: it tries on, and says so once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.servers import free_port

# Beat's own scheduler, whose task falls due again and again: first nobody listens, then a Redis does.
PROGRAM = """
import sys
from shared.infra import logs
from workers import beat

logs.configure(beat.settings)
scheduler = beat.TimedScheduler(app=beat.app)
(entry,) = scheduler.schedule.values()
for url in (f"redis://127.0.0.1:{sys.argv[1]}/0", beat.app.conf.broker_url) * 2:
    with beat.app.connection_for_write(url) as connection:
        connection.transport_options = {**connection.transport_options, "max_retries": 1, "interval_max": 0.1}
        producer = scheduler.Producer(connection, auto_declare=False)
        for _ in range(2):
            scheduler.apply_entry(entry, producer=producer)
"""


def test_an_outage_of_redis_is_one_line_and_its_end_another(redis_url: str, tmp_path: Path) -> None:
    env = {**os.environ, "REDIS_URL": redis_url, "RUNYARD_DATA_DIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(free_port())],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    outage = "WARNING workers.beat: Redis is away, nobody is notified until it is back: "
    back = "INFO workers.beat: Redis is back"
    assert [back if line == back else line[: len(outage)] for line in said] == [outage, back, outage, back], (
        done.stderr
    )
