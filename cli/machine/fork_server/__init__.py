"""Starts processes of the service as forks of one that has loaded what they share.

They begin sooner than with an interpreter each, and what none of them changes is in memory once. The supervisor has the
client; the fork server (`__main__`) has to load gevent before anything else, so nothing is imported here.
"""

READY = b"r"  # everything is loaded
FORK = b"f"  # … with two descriptors
GO = b"g"  # the supervisor knows the new process: it may begin
OWN_PID = "@own-pid@"  # in a command, where its shell would have put `$$`
LONGEST = 4000  # bytes of a command that `ps` shows: the fork server's own is as long
REPARENTED_SECONDS = 2.0  # an orphan is its new parent's by then
ANSWER_SECONDS = 5.0  # longer than that

# None of them reads settings when it is imported, and what web alone needs it loads itself.
SHARED = (
    "celery.bin.beat",
    "celery.bin.worker",
    "celery.concurrency.gevent",
    "celery.worker.consumer",
    "gunicorn.app.wsgiapp",
    "gunicorn.workers.ggevent",
    "kombu.transport.redis",
    "shared.infra.health_socket",
    "shared.infra.schema",
    "workers.tasks",
)
