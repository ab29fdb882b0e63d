"""What `client.py doctor` looks at, and what it means: a file for each subject. Nothing is changed.

Facts come from the stores and the file system; here they are judged.
"""
