"""A fork server: processes of the service start as forks of a process that has loaded their common modules.

Forks start sooner than new interpreters and share unchanged memory pages. The supervisor uses `client`; `__main__` is
the fork server. It has to patch the standard library with gevent before any other import, so this file imports nothing.
"""

READY = b"r"  # sent by the fork server: all modules are loaded
FORK = b"f"  # sent by the supervisor with two file descriptors: fork a process
GO = b"g"  # sent by the supervisor: it has recorded the new process, which may start
OWN_PID = "@own-pid@"  # placeholder in a command for the process id (`$$` in a shell)
LONGEST = 4000  # maximum bytes of a fork's command in `ps`; the fork server's own arguments reserve the space
REPARENTED_SECONDS = 2.0  # timeout for an orphan to be reparented to the supervisor
ANSWER_SECONDS = 5.0  # timeout of the supervisor for a fork; longer than REPARENTED_SECONDS

# Modules that at least two processes need. None reads settings at import; web loads its own modules itself.
SHARED = (
    "celery.bin.worker",
    "celery.concurrency.gevent",
    "celery.worker.consumer",
    "gunicorn.app.wsgiapp",
    "gunicorn.workers.ggevent",
    "kombu.transport.redis",
    "shared.infra.health_socket",
    "shared.infra.database_version",
    "workers.tasks",
)
