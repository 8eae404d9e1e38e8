"""The channels that come with the gateway, and what their makers need."""
