"""The command line: a client of our own HTTP interface, and the starter of the whole service on one machine."""
