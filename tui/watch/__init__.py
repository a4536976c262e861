"""Where runs come from and what is known of them: logs as they grow, processes, the fit so far. No screen here."""
