"""Who may do what: each user has what they made, and a part of the store."""

import uuid

from langgraph_sdk import Auth

USERS = {
    "ada-token": {"identity": "ada", "display_name": "Ada", "permissions": ["run"], "team": "engines"},
    "bob-token": {"identity": "bob", "permissions": ["run"], "team": "bridges"},
    "eve-token": {"identity": "eve", "team": "none"},
}
auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> dict:
    user = USERS.get((authorization or "").removeprefix("Bearer "))
    if user is None:
        raise Auth.exceptions.HTTPException(
            status_code=401, detail="Who are you?", headers={"WWW-Authenticate": "Bearer"}
        )
    return user


@auth.on
async def own(ctx, value):
    """Whatever is made gets its owner's name, and only they find it."""
    if isinstance(ctx.user, Auth.types.StudioUser):
        return None
    owner = {"owner": ctx.user.identity}
    value["metadata"] = {**(value.get("metadata") or {}), **owner}
    return owner


@auth.on.threads.create_run
async def run(ctx, value):
    if isinstance(ctx.user, Auth.types.StudioUser):
        return None
    if "run" not in ctx.permissions:
        return False
    assert isinstance(value["run_id"], uuid.UUID | None)
    value.setdefault("metadata", {})["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on.assistants(actions=["read", "search"])
async def see(ctx, value):
    """The graphs' own assistants are everybody's."""
    if isinstance(ctx.user, Auth.types.StudioUser):
        return None
    return {"$or": [{"created_by": "system"}, {"owner": ctx.user.identity}]}


@auth.on.store
async def part(ctx, value):
    """Each user's namespaces begin with their name, and they do not see that."""
    namespace = tuple(value.get("namespace") or ())
    if not namespace or namespace[0] != ctx.user.identity:
        value["namespace"] = (ctx.user.identity, *namespace)
