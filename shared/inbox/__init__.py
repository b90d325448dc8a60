"""Questions of graphs to people: records and searches, answers, links, webhooks, and expiry.

A question is an interrupt of a thread, or a breakpoint at which it stopped. A trigger in the database inserts and closes
questions (`shared/sql/inbox.sql`), in the transaction that changes the thread. They are deleted with their thread.
"""
