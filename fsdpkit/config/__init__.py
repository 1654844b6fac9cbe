"""What a job, a site and a template are: the data model, how files become it, what they may say.

Nothing here imports torch, jinja2 or submitit, runs a command, or writes a file.
"""
