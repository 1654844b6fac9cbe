"""What a centre publishes: templates, profiles, and the pages that show them."""
