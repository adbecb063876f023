"""Tables and figures over many runs (`write`). matplotlib, pandas and Jinja are imported when used."""
