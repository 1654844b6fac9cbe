"""Why a run ended as it did: `diagnose`."""
