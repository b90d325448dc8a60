"""What a process does when it starts: all of them start at once, and no run begins until they have."""

from __future__ import annotations

import gc

from shared.infra import collector


def test_garbage_is_collected_once_a_process_has_loaded_what_it_needs() -> None:
    loaded = gc.get_freeze_count()
    gc.disable()
    try:
        collector.keep_what_is_loaded()

        assert gc.isenabled()
        assert gc.get_freeze_count() > loaded
    finally:
        gc.unfreeze()
        gc.enable()
