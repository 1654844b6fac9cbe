"""The report: one run as one HTML page."""
