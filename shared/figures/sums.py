"""SQL for sums of ended runs, shared by folding and reading: rows of `figure` from rows of `ended_run`."""

from __future__ import annotations

from shared.figures.histograms import bucket, counted
from shared.models import ENDED_RUN_STATUSES

STATUSES = tuple(str(status) for status in ENDED_RUN_STATUSES)
KINDS = {
    "wait": "waits",
    "duration": "durations",
    "first_token": "first_tokens",
}  # of seconds → its histogram
COUNTS = ("created", *STATUSES, "attempts", "input_tokens", "output_tokens")
SECONDS = tuple(f"{kind}_seconds" for kind in KINDS)
COLUMNS = (*COUNTS, *SECONDS, *KINDS.values())

TOKENS = ("input_tokens", "output_tokens", "total_tokens")

MODELS_OF_A_RUN = 50
MOST_TOKENS = 10**12


def tokens(of: str, name: str) -> str:
    """Return SQL for a token count in a model's document. A graph host may send any value, so it is bounded."""
    number = (
        f"CASE jsonb_typeof({of} -> '{name}') WHEN 'number' THEN CAST({of} -> '{name}' AS numeric) ELSE 0 END"
    )
    return f"CAST(least(greatest({number}, 0), {MOST_TOKENS}) AS bigint)"


def models(usage: str) -> str:
    """Return SQL for the models of a run's usage, one row each."""
    document = f"CASE jsonb_typeof({usage}) WHEN 'object' THEN {usage} END"
    return (
        "(SELECT coalesce(nullif(left(key, 200), ''), 'unknown') AS model, value AS counts"
        f" FROM jsonb_each({document}) LIMIT {MODELS_OF_A_RUN})"
    )


def used(source: str) -> str:
    """Return SQL for unsummed rows of `daily_usage` from `source`, which is as in `summed`."""
    return f"""
SELECT e.organization_id, CAST(e.ended_at AT TIME ZONE 'UTC' AS date) AS day, e.deployment_id, e.key_id,
    '' AS model, 1 AS runs, {", ".join(f"0 AS {name}" for name in TOKENS)}
FROM {source} e
UNION ALL
SELECT e.organization_id, CAST(e.ended_at AT TIME ZONE 'UTC' AS date), e.deployment_id, e.key_id,
    m.model, 1, {", ".join(tokens("m.counts", name) for name in TOKENS)}
FROM {source} e CROSS JOIN LATERAL {models("e.usage")} m
"""


def summed(source: str, steps: str) -> str:
    """Return SQL for rows of `figure` from `source`, rows of `ended_run` with their organization_id."""
    return f"""
SELECT organization_id, step_seconds, at, deployment_id, key_id, {", ".join((*COUNTS, *SECONDS))},
    {", ".join(f"{counted(f'{name}_buckets')} AS {name}" for name in KINDS.values())}
FROM (
    SELECT p.organization_id, s.step_seconds, p.deployment_id, p.key_id,
        CASE s.step_seconds WHEN 0 THEN to_timestamp(0)
            ELSE date_bin(make_interval(secs => s.step_seconds), p.moment, to_timestamp(0)) END AS at,
        sum(p.created) AS created,
        {", ".join(f"count(*) FILTER (WHERE p.status = '{status}') AS {status}" for status in STATUSES)},
        sum(p.attempts) AS attempts, sum(p.input_tokens) AS input_tokens, sum(p.output_tokens) AS output_tokens,
        {", ".join(f"coalesce(sum(p.{name}), 0) AS {name}" for name in SECONDS)},
        {", ".join(f"array_agg(p.{kind}_bucket) AS {name}_buckets" for kind, name in KINDS.items())}
    FROM ({_parts(source)}) p CROSS JOIN unnest({steps}) AS s(step_seconds)
    GROUP BY p.organization_id, s.step_seconds, 5, p.deployment_id, p.key_id
) AS grouped
"""


def _parts(source: str) -> str:
    """Return SQL for the contributions of each run: `created` at its creation, everything else at its end."""
    return f"""
SELECT e.organization_id, e.deployment_id, e.key_id, e.created_at AS moment, 1 AS created, NULL AS status,
    0 AS attempts, 0 AS input_tokens, 0 AS output_tokens,
    {", ".join(f"CAST(NULL AS double precision) AS {name}" for name in SECONDS)},
    {", ".join(f"CAST(NULL AS int) AS {kind}_bucket" for kind in KINDS)}
FROM {source} e
UNION ALL
SELECT e.organization_id, e.deployment_id, e.key_id, e.ended_at, 0, e.status,
    e.attempts, coalesce(u.input_tokens, 0), coalesce(u.output_tokens, 0), {", ".join(f"e.{name}" for name in SECONDS)},
    {", ".join(bucket(f"e.{name}") for name in SECONDS)}
FROM {source} e CROSS JOIN LATERAL (
    SELECT sum({tokens("m.counts", "input_tokens")}) AS input_tokens,
        sum({tokens("m.counts", "output_tokens")}) AS output_tokens
    FROM {models("e.usage")} m) u
"""
