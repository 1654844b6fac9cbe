"""What an administrator does: profiles, templates and versions of them, signed, for all users."""
