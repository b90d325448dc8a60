"""Protocol v2: a thread's runs as one numbered sequence of events, and the protocol's commands.

The sequence is a second view of the runs' event logs. It is computed from rows and logs alone, so every process can
serve every reader, and the numbers stay the same after all of Redis is lost.
"""
