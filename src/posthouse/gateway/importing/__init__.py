"""Taking over what other programs kept."""
