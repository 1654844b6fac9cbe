"""Parts of overhead.py: jobs that are started, killed and looked at."""
