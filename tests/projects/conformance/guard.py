"""Lets every caller in: the conformance kit of MCP sends no key."""

from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate() -> Auth.types.MinimalUserDict:
    return {"identity": "kit"}
