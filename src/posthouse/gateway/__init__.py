"""The gateway: what comes from chat channels is kept, worked off session by session, and answered."""
