"""A template as an app of a web portal: Open OnDemand or Open Composer.

`script` makes the script, by the template and the renderer that `submit` uses; the others write the
forms around it; `rules` checks the result as its readers do.
"""
