"""Queues on PostgreSQL, ours and others, and the bare loops, behind the same few verbs; in their own processes."""
