"""The operators' side of the gateway: administration, metrics, inventory, logs."""
