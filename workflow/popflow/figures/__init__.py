"""Publication-grade figures, each with the numbers that it draws."""
