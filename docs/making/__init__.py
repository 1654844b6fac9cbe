"""The pages of `docs/failures/`, one a cause, and text of the code as Markdown.

`python -m docs.making` writes the pages; a test finds them out of date. The rest of the reference
is made as the documentation is built (docs/reference_hooks.py).
"""
