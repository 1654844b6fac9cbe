"""What an administrator does with templates before users see them: check, compare, export."""
