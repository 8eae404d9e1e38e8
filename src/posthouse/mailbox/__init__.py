"""The pure core: messages, policies, commands, outcomes, events and rules."""
