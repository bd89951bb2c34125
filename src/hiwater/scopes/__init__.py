"""Named intervals and their exact peaks: the manager, `track()`, `ResourceTracker` and `Usage`."""
