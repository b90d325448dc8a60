"""Error codes of A2A, and the id of a task, which consists of its thread and its run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from shared.errors import NotFound

TASK_NOT_FOUND, TASK_NOT_CANCELABLE, PUSH_NOT_SUPPORTED = -32001, -32002, -32003
UNSUPPORTED_OPERATION, CONTENT_NOT_SUPPORTED, VERSION_NOT_SUPPORTED = -32004, -32005, -32009

FORM = re.compile(r"([0-9a-fA-F-]{36}):([0-9a-fA-F-]{36})")


def unknown_task() -> NotFound:
    return NotFound("Task not found")


@dataclass(frozen=True)
class TaskId:
    thread_id: UUID
    run_id: UUID

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Parse the id of a task. Raises NotFound for a text that cannot be one."""
        match = FORM.fullmatch(text)
        try:
            if match is not None:
                return cls(UUID(match[1]), UUID(match[2]))
        except ValueError:
            pass
        raise unknown_task()

    def __str__(self) -> str:
        return f"{self.thread_id}:{self.run_id}"
