"""Figures: a row for each ended run, and the sums into which these rows are folded (shared/figures)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Numeric,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB

from shared.models.base import EMPTY, METADATA, NOW, TIME, column, deployment_key


def _organization_key() -> Column[Any]:
    return column(
        "organization_id", Uuid, ForeignKey("organization.id", ondelete="CASCADE"), primary_key=True
    )


# The counted values of a run, written by the statement that ends it, and deleted when they are folded.
#
# There is no foreign key, because its lock could make the end of a run wait. A deployment is kept until its rows are
# folded.
ENDED_RUN = Table(
    "ended_run",
    METADATA,
    column("id", BigInteger, Identity(), primary_key=True),
    column("deployment_id", Uuid),
    column("key_id", Text),
    column("status", Text),
    column("created_at", TIME),
    column("ended_at", TIME, server_default=NOW),
    column("attempts", BigInteger),
    column("wait_seconds", Double, nullable=True),
    column("duration_seconds", Double, nullable=True),
    column("first_token_seconds", Double, nullable=True),
    column("usage", JSONB(none_as_null=True), nullable=True),
    column("user_name", Text, nullable=True),
    column("node_usage", JSONB(none_as_null=True), nullable=True),  # usage by node
)


# The sums of a deployment's runs of one key in one time step. Two rows are merged by adding all columns but the key.
#
# `waits`, `durations` and `first_tokens` are histograms: bucket → count (shared/figures/reading.py).
FIGURE = Table(
    "figure",
    METADATA,
    _organization_key(),
    column("step_seconds", Integer, primary_key=True),  # 0: all time
    column("at", TIME, primary_key=True),
    column("deployment_id", Uuid, primary_key=True),
    column("key_id", Text, primary_key=True),
    column("created", BigInteger, server_default="0"),
    column("success", BigInteger, server_default="0"),
    column("error", BigInteger, server_default="0"),
    column("timeout", BigInteger, server_default="0"),
    column("interrupted", BigInteger, server_default="0"),
    column("attempts", BigInteger, server_default="0"),
    column("input_tokens", BigInteger, server_default="0"),
    column("output_tokens", BigInteger, server_default="0"),
    column("wait_seconds", Double, server_default="0"),
    column("duration_seconds", Double, server_default="0"),
    column("first_token_seconds", Double, server_default="0"),
    column("waits", JSONB, server_default=EMPTY),
    column("durations", JSONB, server_default=EMPTY),
    column("first_tokens", JSONB, server_default=EMPTY),
    Index("ix_figure_step_seconds_at", "step_seconds", "at"),
)


# Tokens of one model on one day. The row with an empty model counts the runs, whichever models they called.
DAILY_USAGE = Table(
    "daily_usage",
    METADATA,
    _organization_key(),
    column("day", Date, primary_key=True),
    column("deployment_id", Uuid, primary_key=True),
    column("key_id", Text, primary_key=True),
    column("model", Text, primary_key=True),
    column("runs", BigInteger, server_default="0"),
    column("input_tokens", BigInteger, server_default="0"),
    column("output_tokens", BigInteger, server_default="0"),
    column("total_tokens", BigInteger, server_default="0"),
    Index("ix_daily_usage_day", "day"),
)


# Tokens of a user or node of a deployment, by model and day. Upkeep stores up to MOST_NAMES users and nodes of a day by
# name (shared/figures/folding.py); `is_rest` marks the sum of the others. Rows with an empty model count the runs.
DAILY_DETAIL = Table(
    "daily_detail",
    METADATA,
    deployment_key(primary=True),
    column("day", Date, primary_key=True),
    column("kind", Text, primary_key=True),  # user or node
    column("is_rest", Boolean, primary_key=True),
    column("name", Text, primary_key=True),  # empty: runs without a user, calls outside of nodes
    column("model", Text, primary_key=True),
    column("runs", BigInteger, server_default="0"),
    column("input_tokens", BigInteger, server_default="0"),
    column("output_tokens", BigInteger, server_default="0"),
    column("total_tokens", BigInteger, server_default="0"),
    Index("ix_daily_detail_day", "day"),
)


# What the runs of an account with a budget have used on a day, including live runs: tokens, and cost in US dollars.
SPENT_TOKENS = Table(
    "spent_tokens",
    METADATA,
    column("kind", Text, primary_key=True),  # deployment, key, user or thread
    column("id", Text, primary_key=True),  # of a user or thread: the deployment's id, `:`, and its name or id
    column("day", Date, primary_key=True),
    column("tokens", BigInteger),
    column("cost", Numeric, server_default="0"),
)


# A share of a limit that an account has reached on a day, or (percent 0) a model without a price that it has called.
BUDGET_ALERT = Table(
    "budget_alert",
    METADATA,
    column("kind", Text, primary_key=True),
    column("id", Text, primary_key=True),
    column("day", Date, primary_key=True),
    column("name", Text, primary_key=True),  # of the limit or the model
    column("most", Numeric, primary_key=True),  # the limit: another one has alerts of its own
    column("percent", Integer, primary_key=True, autoincrement=False),
)


# The durations of builds by their final status: the sum, and a histogram as in `figure`.
BUILD_FIGURE = Table(
    "build_figure",
    METADATA,
    column("status", Text, primary_key=True),
    column("seconds", Double),
    column("durations", JSONB),
)
