"""The peer: two parties of a trade exchange private messages over direct streams, kept until they are acknowledged."""
