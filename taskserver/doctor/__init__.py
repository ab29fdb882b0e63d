"""The checks of `client.py doctor`: a file for each subject. Nothing is changed.

The stores and the file system give facts; the files here judge them.
"""
