"""The outbound queue as files, in OpenClaw's layout, for moving there and back step by step."""
