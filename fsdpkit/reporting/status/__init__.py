"""How runs stand, now and while one watches: `status` and `watch`."""
