"""The series from which the bundled forecasting model learned."""
