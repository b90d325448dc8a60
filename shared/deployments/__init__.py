"""Deployments and their revisions. A deployment is a running application; a revision is one build of it.

The life of a revision:

    QUEUED ─► AWAITING_BUILD ──claim──► BUILDING ─► AWAITING_DEPLOY ─► DEPLOYING ──► DEPLOYED
       │                     │ a step fails: BUILD_FAILED or DEPLOY_FAILED
       └── a newer one ──► SKIPPED;  requested at any time ──► INTERRUPTED

A revision never changes once it is DEPLOYED. A deployment serves one of its revisions.
"""
