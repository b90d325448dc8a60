"""Celery task messages in kombu's Redis format, built without Celery or kombu.

`Celery.send_task` passes four layers for each message, although only two ids and the arguments differ. Any Celery
worker accepts these messages (protocol 2, one Redis list per queue).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from uuid import uuid4

import orjson

EMBEDDED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
SHOWN_CHARACTERS = 200  # of the arguments, for Celery's tools


def made(task: str, queue: str, args: Sequence[object]) -> bytes:
    """Return the message of a task for this queue, as JSON."""
    id = str(uuid4())
    return orjson.dumps(
        {
            "body": b64encode(orjson.dumps([args, {}, EMBEDDED])).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py",
                "task": task,
                "id": id,
                "shadow": None,
                "eta": None,
                "expires": None,
                "group": None,
                "group_index": None,
                "retries": 0,
                "timelimit": [None, None],
                "root_id": id,
                "parent_id": None,
                "argsrepr": repr(args)[:SHOWN_CHARACTERS],
                "kwargsrepr": "{}",
                "origin": None,
                "ignore_result": True,
                "replaced_task_nesting": 0,
                "stamped_headers": None,
                "stamps": {},
            },
            "properties": {
                "correlation_id": id,
                "reply_to": None,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": id,
            },
        }
    )
