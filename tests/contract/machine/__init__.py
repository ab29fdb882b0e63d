"""A queue under random verbs of several workers, producers and persons, step by step beside a model in plain Python.

Chance chooses the `steps`; the same are done to a store and to the `model`, which says what the contract says.
After each step what the verb answered, and every row of the table and the archive, must be as the model has them
(`queue_machine`). Time is moved by SQL: a lease or a due date is put into the past, never waited for.

    model ← steps ← queue_machine
"""
