"""What operators see and do over HTTP and in logs: administration, metrics, inventory."""
