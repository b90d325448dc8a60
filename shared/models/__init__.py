"""Every table and status word of the service, a file a resource.

Columns that hold what users sent and nobody queries are `json` (kept as sent); what is searched is
`jsonb`. Everything below a deployment carries its `deployment_id`, or the id of its revision.
"""

from shared.models.assistants import Assistant, AssistantVersion
from shared.models.backups import LastBackup
from shared.models.base import Base
from shared.models.crons import Cron
from shared.models.deployments import (
    Archive,
    ArchiveChunk,
    Deployment,
    Graph,
    LogLine,
    Preview,
    Revision,
    Secret,
    Upload,
)
from shared.models.figures import BuildFigure, DailyUsage, EndedRun, Figure, SpentTokens
from shared.models.organizations import ApiKey, IdempotentAnswer, Organization
from shared.models.providers import OAuthGrant, OAuthProvider, OAuthRequest
from shared.models.runs import Run
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
    is_due,
    is_live,
    is_unsuccessful,
    waiting_since,
)
from shared.models.store import StoreItem
from shared.models.threads import Checkpoint, CheckpointBlob, CheckpointWrite, Thread
from shared.models.webhooks import WebhookDelivery
from shared.models.workers import Leader, Worker

__all__ = [
    "ENDED_RUN_STATUSES",
    "LIVE_RUN_STATUSES",
    "REVISION_ENDS",
    "UNSUCCESSFUL_RUN_STATUSES",
    "ApiKey",
    "Archive",
    "ArchiveChunk",
    "Assistant",
    "AssistantVersion",
    "Base",
    "BuildFigure",
    "Checkpoint",
    "CheckpointBlob",
    "CheckpointWrite",
    "Cron",
    "DailyUsage",
    "Deployment",
    "DeploymentStatus",
    "EndedRun",
    "Figure",
    "Graph",
    "IdempotentAnswer",
    "LastBackup",
    "Leader",
    "LogLine",
    "OAuthGrant",
    "OAuthProvider",
    "OAuthRequest",
    "Organization",
    "Preview",
    "Revision",
    "RevisionStatus",
    "Run",
    "RunStatus",
    "Secret",
    "SpentTokens",
    "StoreItem",
    "Thread",
    "ThreadStatus",
    "Upload",
    "WebhookDelivery",
    "Worker",
    "has_ended",
    "is_due",
    "is_live",
    "is_unsuccessful",
    "waiting_since",
]
