"""A centre's catalogue: static pages of its clusters, templates and jobs, and a form that writes
the command line's own script in the reader's browser."""
