"""The fork server process: `python -m cli.machine.fork_server CONTROL ROOM`.

CONTROL is the descriptor of a socket to the supervisor. ROOM is spaces that reserve argument space for the command
lines of forks.

The process loads the modules that at least two processes of the service need and reports that it is ready. It then
forks for each message that carries two descriptors: the output of the new process, and a socket between the new process
and the supervisor. The fork server never holds addresses or keys: the new process reads its environment from its own
socket.
"""

from __future__ import annotations

import gc

# Modules loaded here are never freed. A garbage collection would write to their objects' headers, and so make each fork
# copy the shared memory pages.
gc.disable()

import socket  # noqa: E402

Socket = socket.socket  # unpatched: a gevent socket would start an event loop, which does not survive a fork

from gevent import monkey  # noqa: E402

monkey.patch_all()

import importlib  # noqa: E402  the patch comes before every other import
import json  # noqa: E402
import os  # noqa: E402
import runpy  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from typing import NoReturn  # noqa: E402

from cli.machine.fork_server import GO, OWN_PID, READY, REPARENTED_SECONDS, SHARED  # noqa: E402
from shared.infra import system  # noqa: E402
from shared.infra.system import close_memory  # noqa: E402

fork = monkey.get_original("os", "fork")
waitpid = monkey.get_original("os", "waitpid")
sleep = monkey.get_original("time", "sleep")


def main(control: int) -> None:
    """Fork a process for each request of the supervisor. Returns when the supervisor closes the socket."""
    close_memory()
    for name in SHARED:
        importlib.import_module(name)
    gc.freeze()
    supervisor = Socket(fileno=control)
    supervisor.send(READY)
    while True:
        _, received, _, _ = socket.recv_fds(supervisor, 1, 2)
        if len(received) != 2:
            return
        output, answers = received
        between = fork()
        if between == 0:
            if fork() != 0:
                os._exit(0)  # orphans the new process, so that the supervisor adopts it
            supervisor.close()
            become(output, Socket(fileno=answers))
        waitpid(between, 0)
        os.close(output)
        os.close(answers)


def become(output: int, answers: socket.socket) -> NoReturn:
    """Turn this fork into the process that the supervisor describes.

    Waits until the supervisor is the parent and has recorded the process id.
    """
    with answers, answers.makefile("rb") as orders:
        order = json.loads(orders.readline())
        if not _is_parent(order["supervisor"]):
            os._exit(1)
        os.setsid()  # before sending the process id, because the supervisor signals the process group by it
        answers.sendall(b"%d\n" % os.getpid())
        if orders.read(1) != GO:
            os._exit(1)  # the supervisor timed out and has started the program itself
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, output, output)):
        os.dup2(stream, number)
    os.close(nothing)
    os.close(output)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    system.prctl(system.PR_SET_PDEATHSIG, order["death_signal"])
    if not _is_parent(order["supervisor"]):
        os._exit(1)  # the supervisor died before PR_SET_PDEATHSIG was set, so no signal will come
    words = [word.replace(OWN_PID, str(os.getpid())) for word in order["words"]]
    system.show_command(words)
    _, _, module, *arguments = words  # python -m
    sys.argv = [module, *arguments]
    gc.enable()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _is_parent(supervisor: int) -> bool:
    """Whether the supervisor is the parent. Waits up to REPARENTED_SECONDS, because reparenting takes a moment."""
    deadline = time.monotonic() + REPARENTED_SECONDS
    while os.getppid() != supervisor and time.monotonic() < deadline:
        sleep(0.001)
    return os.getppid() == supervisor


if __name__ == "__main__":
    main(int(sys.argv[1]))
