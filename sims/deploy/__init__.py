"""What an operator of secure sums does: keys, enrolment."""
