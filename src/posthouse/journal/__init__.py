"""The journal: every state change, hash-chained in the store and exported to Parquet segments."""
