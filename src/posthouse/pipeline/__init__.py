"""The books: delivery accounts computed from journal segments on Spark."""
