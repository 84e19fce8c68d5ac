"""Why a run is slower than predicted: each cause solved for its size, and weighed."""
