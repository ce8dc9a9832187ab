"""Pictures of what a captioner looked at."""
