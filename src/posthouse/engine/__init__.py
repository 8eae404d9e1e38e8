"""The engine: the only caller of a store. Commands in, outcomes out once they are durable."""
