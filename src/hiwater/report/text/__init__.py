"""Reports for people, in a terminal or a file."""
