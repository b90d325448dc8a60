"""Replays: a revision is executed on a sample of the deployment's past runs, and its results are compared.

A replay has a hidden deployment, its bench (`benches.py`). The cases are ordinary threads and runs of the bench, so the
threads, runs, store, figures and budgets of the original deployment stay untouched.

    preparing ──► running ──┬──► done       every case has an outcome
      the runs are          ├──► stopped    a bound of the replay is reached
      selected              ├──► cancelled  by a caller
                            └──► failed     the replay cannot continue

`workers/upkeep/replays.py` executes replays. Each step is one transaction, so that a replay continues after a kill, and
two leaders never handle a case twice.

    records      replays and their cases as the API shows them
    cases        selecting runs, starting their cases, and recording outcomes
    comparison   one replayed run and its original
    answered_calls  what a past run did inside of tools that its replay answers
    rules        the rule that decides whether a replay passes
    summary      figures of all cases, and the verdict
"""
