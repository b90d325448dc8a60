"""The message of a Celery task as kombu leaves it in Redis, made without either.

`Celery.send_task` passes through four layers for each message, to write what is always the same but for two ids and
the arguments. What is made here any Celery worker takes (protocol 2; a key of Redis per queue, kombu's own layout).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from uuid import uuid4

import orjson

EMBEDDED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
SHOWN_CHARACTERS = 200  # of the arguments, to Celery's tools


def made(task: str, queue: str, args: Sequence[object]) -> bytes:
    """One for this queue."""
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
