"""The words of package managers become the reasons of failed builds. The outputs are real ones, shortened."""

from __future__ import annotations

from workers.builder.node import reasons
from workers.builder.node.installer import KEPT_LINES

OUTDATED = "does not fit package.json: run {0} install and commit it"
NPM_SYNC = (
    "npm error code EUSAGE\nnpm error\nnpm error `npm ci` can only install packages when your package.json and"
    " package-lock.json or npm-shrinkwrap.json are in sync. Please update your lock file with `npm install`"
)
NPM_CONFLICT = """\
npm error code ERESOLVE
npm error ERESOLVE unable to resolve dependency tree
npm error
npm error While resolving: a@1.0.0
npm error Found: @langchain/core@0.3.0
npm error node_modules/@langchain/core
npm error   @langchain/core@"0.3.0" from the root project
npm error
npm error Could not resolve dependency:
npm error peer @langchain/core@"^1.0.1" from @langchain/langgraph@1.0.0
npm error node_modules/@langchain/langgraph"""
NPM_SCRIPT = """\
npm error code 3
npm error path /data/project/node_modules/@a/b
npm error command failed
npm error command sh -c node build.js
npm error starting
npm error no compiler
npm error A complete log of this run can be found in: /home/.npm/_logs/2026-11-26T13_05_32_103Z-debug-0.log"""
YARN_SCRIPT = """\
[4/4] Building fresh packages...
error /data/project/node_modules/b: Command failed.
Exit code: 3
Output:
starting
no compiler
info Visit https://yarnpkg.com/en/docs/cli/install for documentation about this command."""
NPM_UNREACHABLE = """\
npm error code ECONNREFUSED
npm error FetchError: request to http://127.0.0.1:9/zod failed, reason: connect ECONNREFUSED 127.0.0.1:9
npm error     at ClientRequest.<anonymous> (/node/lib/index.js:130:14)"""
NPM_GIT = """\
npm error code 128
npm error An unknown git error occurred
npm error command git --no-replace-objects ls-remote http://git.example/b.git
npm error fatal: unable to access 'http://git.example/b.git/': Failed to connect"""
YARN_GIT = """\
error Command failed.
Exit code: 128
Command: git
Arguments: ls-remote --tags --heads http://git.example/b.git
Directory: /data/project
Output:
fatal: unable to access 'http://git.example/b.git/': Failed to connect
info Visit https://yarnpkg.com/en/docs/cli/install for documentation about this command."""
PNPM_GIT = """\
[ERR_PNPM_GIT_RESOLVE_FAILED] Failed to resolve git dependency "git+http://git.example/b.git": git ls-remote failed: fatal: no
This error happened while installing a direct dependency of /data/project"""
NEWER_YARN_REFUSAL = """\
➤ YN0000: ┌ Resolution step
➤ YN0080: │ b@git+http://git.example/b.git: Request to 'http://git.example/b.git' has been blocked
➤ YN0000: └ Completed in 0s 448ms
➤ YN0000: · Failed with errors in 0s 638ms"""
NEWER_YARN_GIT = """\
➤ YN0001: │ b@git+http://git.example/b.git: Failed listing refs
➤ YN0001: │   Repository URL: http://git.example/b.git
➤ YN0001: │   Fatal Error: unable to access
➤ YN0001: │   Exit Code: 128
➤ YN0000: · Failed with errors in 0s 737ms"""
PNPM_REFUSED = """\
 ERR_PNPM_FETCH_401  GET http://npm.example/@a%2Fb: Unauthorized - 401
This error happened while installing a direct dependency of /data/project
No authorization header was set for the request.
These authorization settings were found:
@a:registry=http://npm.example/"""
NEWER_YARN_DOWN = """\
➤ YN0035: │ @a/b@npm:1.0.0: The registry appears to be down
➤ YN0035: │   Response Code: 500 (Internal Server Error)
➤ YN0035: │   Request Retry Count: 3 (can be increased via httpRetry)
➤ YN0000: └ Completed in 7s 355ms"""
NPM_INTEGRITY = """\
npm error code EINTEGRITY
npm error Verification failed while extracting zod@3.25.76:
npm error sha512-aaa integrity checksum failed when using sha512: wanted sha512-aaa but got sha512-bbb."""


def test_each_manager_s_words_are_explained() -> None:
    for manager, output, reason in (
        ("npm", NPM_SYNC, f"package-lock.json {OUTDATED.format('npm')}"),
        (
            "yarn",
            "error Your lockfile needs to be updated, but yarn was run with `--frozen-lockfile`.",
            f"yarn.lock {OUTDATED.format('yarn')}",
        ),
        (
            "pnpm",
            '[ERR_PNPM_OUTDATED_LOCKFILE] Cannot install with "frozen-lockfile" because pnpm-lock.yaml is not',
            f"pnpm-lock.yaml {OUTDATED.format('pnpm')}",
        ),
        (
            "npm",
            NPM_CONFLICT,
            "no set of versions satisfies the peer dependencies: @langchain/langgraph@1.0.0 wants @langchain/core"
            " ^1.0.1, the project has @langchain/core@0.3.0",
        ),
        (
            "npm",
            "npm error code ETARGET\nnpm error notarget No matching version found for zod@^99.",
            "there is no zod@^99 in the registry",
        ),
        (
            "npm",
            "npm error 404\nnpm error 404  The requested resource 'zodd@1' could not be found or you do not have",
            "there is no zodd@1 in the registry",
        ),
        (
            "pnpm",
            " ERR_PNPM_NO_MATCHING_VERSION  No matching version found for zod@^99 while fetching it from https://x/",
            "there is no zod@^99 in the registry",
        ),
        (
            "pnpm",
            "[ERR_PNPM_FETCH_404] GET https://npm.example/zodd: Not Found - 404\nzodd is not in the npm registry, or",
            "there is no zodd in the registry",
        ),
        (
            "yarn",
            'error Couldn\'t find any versions for "zod" that matches "^99"\ninfo Visit https://yarnpkg.com/en/docs',
            "there is no zod@^99 in the registry",
        ),
        (
            "yarn",
            'error Couldn\'t find package "zodd" on the "npm" registry.',
            "there is no zodd in the registry",
        ),
        ("yarn", "➤ YN0082: │ zod@npm:^99: No candidates found", "there is no zod@^99 in the registry"),
        ("yarn", "➤ YN0035: │ zodd@npm:1: Package not found", "there is no zodd@1 in the registry"),
        ("npm", NPM_INTEGRITY, "zod@3.25.76 is not what the lock file says"),
        (
            "npm",
            NPM_UNREACHABLE,
            "the package registry cannot be reached: connect ECONNREFUSED 127.0.0.1:9",
        ),
        (
            "yarn",
            "error Error: https://npm.example/zod.tgz: ESOCKETTIMEDOUT\n    at Timeout (node:net:740:8)\ninfo Visit https://yarnpkg.com",
            "the package registry cannot be reached: https://npm.example/zod.tgz: ESOCKETTIMEDOUT",
        ),
        ("yarn", "error Error: odd\n    at Timeout (node:net:740:8)", "Error: odd"),
        (
            "npm",
            NPM_GIT,
            "http://git.example/b.git comes from a Git repository that cannot be read: fatal: unable to access"
            " 'http://git.example/b.git/': Failed to connect",
        ),
        (
            "yarn",
            YARN_GIT,
            "http://git.example/b.git comes from a Git repository that cannot be read: fatal: unable to access"
            " 'http://git.example/b.git/': Failed to connect",
        ),
        (
            "pnpm",
            PNPM_GIT,
            "git+http://git.example/b.git comes from a Git repository that cannot be read: fatal: no",
        ),
        (
            "yarn",
            NEWER_YARN_GIT,
            "b@git+http://git.example/b.git comes from a Git repository that cannot be read: Fatal Error: unable"
            " to access",
        ),
        (
            "yarn",
            NEWER_YARN_REFUSAL,
            "b@git+http://git.example/b.git: Request to 'http://git.example/b.git' has been blocked",
        ),
        ("pnpm", PNPM_REFUSED, "GET http://npm.example/@a%2Fb: Unauthorized - 401"),
        ("yarn", NEWER_YARN_DOWN, "@a/b@npm:1.0.0: The registry appears to be down"),
        ("npm", NPM_SCRIPT, "the install script of @a/b failed: no compiler"),
        ("yarn", YARN_SCRIPT, "the install script of b failed: no compiler"),
        (
            "npm",
            "npm error code EOTHER\nnpm error something else\nnpm error A complete log of this run",
            "something else",
        ),
        (
            "npm",
            'npm error Missing script: "build"\nnpm error\nnpm error   npm run',
            'Missing script: "build"',
        ),
        ("npm", "> build\na.ts: bad type", "a.ts: bad type"),
        (
            "npm",
            "a.js:1\nTypeError: x is null\n    at f (a.js:1:2)\n\nNode.js v24.19.0",
            "TypeError: x is null",
        ),
        (
            "pnpm",
            "a.ts: bad type\n ELIFECYCLE  Command failed with exit code 2.\n WARN   no modules",
            "a.ts: bad type",
        ),
        (
            "yarn",
            "a.ts: bad type\ninfo Visit https://yarnpkg.com\nerror Command failed with exit code 2.",
            "a.ts: bad type",
        ),
    ):
        assert reasons.explained(output.splitlines(), "last line", manager) == reason, output
    limit = "the step took more than 2048 MiB of memory"
    assert reasons.explained(NPM_UNREACHABLE.splitlines(), limit, "npm") == limit


def test_lines_that_help_nobody_are_left_out() -> None:
    noise = reasons.Noise()
    output = [
        'npm warn Unknown env config "nodedir". This will stop working',
        "npm warn deprecated glob@7",
        "npm error Missing: left-pad@1.3.0 from lock file",
        "npm error Clean install a project",
        "npm error Options:",
    ]
    assert [line for line in output if not noise.contains(line)] == output[1:3]


def test_output_that_repeats_what_is_searched_for_does_not_hold_up_the_builder() -> None:
    for part in (
        "ERESOLVE Found: x peer ",
        "git ls-remote x ",
        "node_modules/",
        "x",
        "EINTEGRITY @x",
        "error ",
    ):
        lines = [part * (8192 // len(part))] * KEPT_LINES
        assert reasons.explained(lines, "last line", "npm")
    reason = "Cannot find package '" + "node_modules/a/" * 100_000
    assert reasons.of_loading(reason) == reason


def test_a_package_of_a_workspace_that_is_not_built_needs_a_command() -> None:
    for kind in ("package", "module"):
        error = (
            f"Cannot find {kind} '/p/node_modules/@x/shared/dist/index.js' imported from /p/apps/a/agent.ts"
        )
        reason = "'@x/shared' has no dist/index.js: give a build_command that builds it"
        assert reasons.of_loading(f"graph 'a': {error}\n    at packageResolve") == reason
    other = "Cannot find package 'zod' imported from /p/agent.ts"
    assert reasons.of_loading(other) == other
