"""Reading what another relay left behind, so that nobody has to begin anew."""
