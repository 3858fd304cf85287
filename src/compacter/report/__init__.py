"""Reports: finished runs become tables, figures and one page. Importing this imports no torch."""
