"""Reports for other programs: JSON, CSV, flame graphs, and the formats of other profilers."""
