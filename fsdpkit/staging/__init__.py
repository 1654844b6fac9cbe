"""Copies of files on the disks of a job's nodes, made once for the whole job.

This room runs on the nodes before anything of the job's environment does: from a zip, in the
system's own Python. So it has the standard library of Python 3.9 and nothing else.
"""
