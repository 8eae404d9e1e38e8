"""gossipsub 1.1: messages on topics, passed on from peer to peer."""
