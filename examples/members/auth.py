"""Who a caller is, and what is theirs: each user sees the threads they made, and no others."""

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
    """What no handler below speaks of is for whoever manages the deployment."""
    return _manages(ctx)


@auth.on.threads
async def own_threads(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str] | None:
    """A thread gets its owner's name when it is made, and only its owner finds it."""
    if _manages(ctx):
        return None
    owner = {"owner": ctx.user.identity}
    value.setdefault("metadata", {}).update(owner)
    return owner


@auth.on.assistants(actions=["read", "search"])
async def see_assistants(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
    """Everybody may know which graphs there are."""


def _manages(ctx: Auth.types.AuthContext) -> bool:
    return isinstance(ctx.user, Auth.types.StudioUser)
