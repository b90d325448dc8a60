"""A JavaScript project without packages of a registry, and the creation of its environment in a test."""

from __future__ import annotations

import dataclasses
import json
import os
from uuid import uuid4

from cli.machine.procfile import PROJECT
from shared.settings import Settings
from tests.support.greened import World
from workers.builder import environments
from workers.builder.environments import Environment, Plan
from workers.builder.node.resolved import NO_COMMANDS, Commands

DEPLOYMENT = uuid4()
CONFIG = {"graphs": {"agent": "./src/agent.ts:graph"}}
PACKAGE = {
    "name": "app",
    "version": "1.0.0",
    "type": "module",
    "dependencies": {"greeting": "file:./greeting"},
}
GREETING = {"name": "greeting", "version": "1.0.0", "main": "index.js"}
AGENT = """
import { greet } from "greeting";
import { Kind } from "./kind.js";
export const graph = `${greet("agent")} ${Kind.First} ${process.version}`;
"""
FILES = {
    "langgraph.json": json.dumps(CONFIG),
    "package.json": json.dumps(PACKAGE),
    "src/agent.ts": AGENT,
    "src/kind.ts": "export enum Kind { First = 7 }\n",
    "greeting/package.json": json.dumps(GREETING),
    "greeting/index.js": "exports.greet = (name) => `hello ${name}`;\n",
}


def settings_for(world: World) -> Settings:
    found = Settings.from_env({**os.environ, "RUNYARD_DATA_DIR": str(world.tmp_path / "data")})
    return dataclasses.replace(found, cache_dir=PROJECT / ".cache")


def make(settings: Settings, source: str | Plan, said: list[str] | None = None) -> Environment:
    lines = said if said is not None else []
    return environments.make(
        settings,
        uuid4(),
        planned(source) if isinstance(source, str) else source,
        write_line=lambda level, message: lines.append(message),
        deadline_seconds=300,
    )


def planned(
    digest: str, requirements: str | None = None, commands: Commands = NO_COMMANDS, **variables: str
) -> Plan:
    return Plan(
        deployment_id=DEPLOYMENT,
        digest=digest,
        config_path=None,
        requirements=requirements,
        commands=commands,
        variables=variables,
    )
