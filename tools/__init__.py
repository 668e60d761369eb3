"""Programs and parts for working on the repository; no part of the wheel."""
