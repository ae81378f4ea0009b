"""What if the inputs were different: many scenarios of one job, compared."""
