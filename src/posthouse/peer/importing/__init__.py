"""Taking over what other peers' programs kept."""
