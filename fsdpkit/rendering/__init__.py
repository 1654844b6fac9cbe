"""From a job, a site and a template to the script's text. Pure but for reading the template."""
