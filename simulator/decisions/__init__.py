"""What to buy: clusters and sizes compared, the size for a date or a budget, layouts compared."""
