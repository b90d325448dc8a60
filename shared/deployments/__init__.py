"""Deployments and their revisions: what is kept running, and what was built of it. The life of a revision:

    QUEUED ──claim──► AWAITING_BUILD ─► BUILDING ─► AWAITING_DEPLOY ─► DEPLOYING ──► DEPLOYED
       │                     │ a step fails: BUILD_FAILED or DEPLOY_FAILED
       └── a newer one ──► SKIPPED;  asked for at any time ──► INTERRUPTED

A revision never changes once it is DEPLOYED; a deployment serves one of them.
"""
