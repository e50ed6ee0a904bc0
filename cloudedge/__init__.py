"""cloudedge: one release, one version, everywhere, or nothing."""
