"""The command line: a client of our own HTTP interface, and the starter of the whole service on one machine.

`main` lists the commands, and each is a function of its room: `machine` (up, dev, demo, process, health), `deployments`
(deploy to logs), `runs` (run, runs, threads), `operating` (workers, keys, usage …), `backups` and `doctor`. All of them
ask through `api`, and share `options`, `output` and `errors`.
"""
