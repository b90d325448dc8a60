"""The tables and status values of the service, one file for each subject.

Columns with user data that no query searches are `json`, which stores the text unchanged. Searched columns are `jsonb`.
Each table below a deployment has its `deployment_id`, or the id of its revision.
"""

from shared.models.base import METADATA
from shared.models.deployments import (
    ARCHIVE,
    ARCHIVE_CHUNK,
    DEPLOYMENT,
    GRAPH,
    LOG_LINE,
    PREVIEW,
    REVISION,
    SECRET,
    UPLOAD,
)
from shared.models.figures import BUILD_FIGURE, DAILY_USAGE, ENDED_RUN, FIGURE, SPENT_TOKENS
from shared.models.organizations import (
    API_KEY,
    IDEMPOTENT_ANSWER,
    OAUTH_GRANT,
    OAUTH_PROVIDER,
    OAUTH_REQUEST,
    ORGANIZATION,
)
from shared.models.runs import ASSISTANT, ASSISTANT_VERSION, CRON, RUN, WEBHOOK_DELIVERY
from shared.models.statuses import (
    ENDED_RUN_STATUSES,
    LIVE_RUN_STATUSES,
    REVISION_ENDS,
    UNSUCCESSFUL_RUN_STATUSES,
    DeploymentStatus,
    RevisionStatus,
    RunStatus,
    ThreadStatus,
    has_ended,
    is_unsuccessful,
    status_of_deployment,
)
from shared.models.threads import CHECKPOINT, CHECKPOINT_BLOB, CHECKPOINT_WRITE, STORE_ITEM, THREAD
from shared.models.workers import HEARTBEAT_SECONDS, LAST_BACKUP, LEADER, SILENT_SECONDS, WORKER, is_silent

__all__ = [
    "API_KEY",
    "ARCHIVE",
    "ARCHIVE_CHUNK",
    "ASSISTANT",
    "ASSISTANT_VERSION",
    "BUILD_FIGURE",
    "CHECKPOINT",
    "CHECKPOINT_BLOB",
    "CHECKPOINT_WRITE",
    "CRON",
    "DAILY_USAGE",
    "DEPLOYMENT",
    "ENDED_RUN",
    "ENDED_RUN_STATUSES",
    "FIGURE",
    "GRAPH",
    "HEARTBEAT_SECONDS",
    "IDEMPOTENT_ANSWER",
    "LAST_BACKUP",
    "LEADER",
    "LIVE_RUN_STATUSES",
    "LOG_LINE",
    "METADATA",
    "OAUTH_GRANT",
    "OAUTH_PROVIDER",
    "OAUTH_REQUEST",
    "ORGANIZATION",
    "PREVIEW",
    "REVISION",
    "REVISION_ENDS",
    "RUN",
    "SECRET",
    "SILENT_SECONDS",
    "SPENT_TOKENS",
    "STORE_ITEM",
    "THREAD",
    "UNSUCCESSFUL_RUN_STATUSES",
    "UPLOAD",
    "WEBHOOK_DELIVERY",
    "WORKER",
    "DeploymentStatus",
    "RevisionStatus",
    "RunStatus",
    "ThreadStatus",
    "has_ended",
    "is_silent",
    "is_unsuccessful",
    "status_of_deployment",
]
