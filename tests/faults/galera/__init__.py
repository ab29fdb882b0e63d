"""A storm over a cluster: three nodes of Galera that are killed, frozen, copied and left without a quorum.

Producers and workers of all kinds go on meanwhile, on all nodes. The stage, the tasks and the checks are those of
tests/faults/chaos; the workers' lease is longer than it takes them to find another node.

    python -m tests.faults.galera --seconds 480 --seed 7
"""
