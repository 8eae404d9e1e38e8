"""A demo: a server with everything switched on, and synthetic people, agents and traders who use it and break it."""
