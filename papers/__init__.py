"""The experiments of the papers: their results as tables and figures, beside the published ones."""
