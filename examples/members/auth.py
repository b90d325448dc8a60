"""Authentication and authorization: each user sees only the threads they created."""

from typing import Any

from langgraph_sdk import Auth
from users import NAMES, user_of

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> dict[str, Any]:
    scheme, _, token = (authorization or "").partition(" ")
    name = user_of(token) if scheme.lower() == "bearer" else None
    if name is None:
        raise Auth.exceptions.HTTPException(
            status_code=401, detail="Sign in first.", headers={"WWW-Authenticate": "Bearer"}
        )
    return {"identity": name, "display_name": NAMES[name], "permissions": ["chat"]}


@auth.on
async def refuse(ctx: Auth.types.AuthContext, value: Any) -> bool:
    """Deny every action without a handler below, except for Studio users, who manage the deployment."""
    return _manages(ctx)


@auth.on.threads
async def own_threads(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str] | None:
    """Store the owner in a new thread's metadata. Only the owner and Studio users see the thread."""
    if _manages(ctx):
        return None
    owner = {"owner": ctx.user.identity}
    value.setdefault("metadata", {}).update(owner)
    return owner


@auth.on.assistants(actions=["read", "search"])
async def see_assistants(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
    """Let every user read and search assistants."""


def _manages(ctx: Auth.types.AuthContext) -> bool:
    return isinstance(ctx.user, Auth.types.StudioUser)
