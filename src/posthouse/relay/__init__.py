"""The relay: agents exchange sealed envelopes through it; what is for one that is away is kept in order."""
