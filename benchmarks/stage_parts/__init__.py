"""Parts of stage.py: a file server whose answers are counted and slow, and what its nodes do."""
