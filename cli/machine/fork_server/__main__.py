"""The process that forks: `python -m cli.machine.fork_server CONTROL ROOM`, the number of a socket to the supervisor, and spaces.

It loads what at least two processes of the service need, says that it is ready, and then forks for each
message that comes with two descriptors: what the new process prints to, and a socket to its supervisor alone.
Addresses and keys are never here: the new process reads its environment from its own socket.
"""

from __future__ import annotations

import gc

# What is loaded here stays: the collector would look through it, and so copy it into each fork.
gc.disable()

import socket  # noqa: E402

Socket = socket.socket  # the system's: gevent's would start a loop, of which no fork could make use

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
from shared.infra.hardening import close_memory  # noqa: E402

fork = monkey.get_original("os", "fork")
waitpid = monkey.get_original("os", "waitpid")
sleep = monkey.get_original("time", "sleep")


def main(control: int) -> None:
    """Fork as often as asked to; returns when nobody will ask any more."""
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
        output, own = received
        between = fork()
        if between == 0:
            if fork() != 0:
                os._exit(0)  # the new process goes to the supervisor, who takes orphans
            supervisor.close()
            become(output, Socket(fileno=own))
        waitpid(between, 0)
        os.close(output)
        os.close(own)


def become(output: int, own: socket.socket) -> NoReturn:
    """Be the process that the supervisor describes, once it is our parent and has our process id."""
    with own, own.makefile("rb") as orders:
        order = json.loads(orders.readline())
        if not _is_parent(order["supervisor"]):
            os._exit(1)
        os.setsid()  # whoever knows our process id may signal the whole session
        own.sendall(b"%d\n" % os.getpid())
        if orders.read(1) != GO:
            os._exit(1)  # it has waited for too long and started another
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
        os._exit(1)  # it died before it would have taken us along
    words = [word.replace(OWN_PID, str(os.getpid())) for word in order["words"]]
    system.show_command(words)
    _, _, module, *arguments = words  # python -m
    sys.argv = [module, *arguments]
    gc.enable()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _is_parent(supervisor: int) -> bool:
    """Whether we are its child; orphans get there in their time."""
    deadline = time.monotonic() + REPARENTED_SECONDS
    while os.getppid() != supervisor and time.monotonic() < deadline:
        sleep(0.001)
    return os.getppid() == supervisor


if __name__ == "__main__":
    main(int(sys.argv[1]))
