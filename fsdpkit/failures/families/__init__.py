"""The causes of failures, one file for each family. Which goes first says failures/causes.py."""
