"""Deployments: enrolment, configuration, and the programs behind `secagg serve` and `secagg join`."""
