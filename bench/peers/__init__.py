"""Other queues and ours behind the same few commands, each in processes of its own: `python -m bench.peers`."""
