"""The tables and status values of the service, one file for each subject.

Columns with user data that no query searches are `json`, which stores the text unchanged. Searched columns are `jsonb`.
Each table below a deployment has its `deployment_id`, or the id of its revision.
"""

# ruff: noqa: F401

from shared.models.base import METADATA
from shared.models.deployments import (
    ARCHIVE,
    ARCHIVE_CHUNK,
    COMPONENT_BUNDLE,
    DEPLOYMENT,
    GRAPH,
    LOG_LINE,
    PREVIEW,
    REVISION,
    SECRET,
    UPLOAD,
)
from shared.models.figures import (
    BUDGET_ALERT,
    BUILD_FIGURE,
    DAILY_DETAIL,
    DAILY_USAGE,
    ENDED_RUN,
    FIGURE,
    SPENT_TOKENS,
)
from shared.models.organizations import (
    ACCOUNT,
    API_KEY,
    AUDIT_ENTRY,
    DEVICE_LOGIN,
    IDEMPOTENT_ANSWER,
    OAUTH_GRANT,
    OAUTH_PROVIDER,
    OAUTH_REQUEST,
    ORGANIZATION,
    SESSION,
)
from shared.models.questions import QUESTION, QUESTION_LINK
from shared.models.replays import REPLAY, REPLAY_CASE
from shared.models.runs import (
    ASSISTANT,
    ASSISTANT_VERSION,
    BULK_OPERATION,
    BULK_RUN,
    CRON,
    RUN,
    RUN_FEEDBACK,
    WEBHOOK_DELIVERY,
)
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
from shared.models.threads import (
    CHECKPOINT,
    CHECKPOINT_BLOB,
    CHECKPOINT_WRITE,
    MCP_CALL,
    STORE_ITEM,
    THREAD,
)
from shared.models.workers import HEARTBEAT_SECONDS, LAST_BACKUP, LEADER, SILENT_SECONDS, WORKER, is_silent
