"""The series from which the bundled forecasting model learned, and how good, exact and fast its forecasts are."""
