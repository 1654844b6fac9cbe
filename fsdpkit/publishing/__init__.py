"""What an administrator does: versions of templates, profiles and jobs, signed, for all users."""
