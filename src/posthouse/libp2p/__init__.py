"""A small libp2p for asyncio: TCP, Noise, yamux, identify, ping, gossipsub, mDNS; usable on its own."""
