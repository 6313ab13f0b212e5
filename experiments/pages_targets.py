from pages_format import Tables
TABLES: Tables = {}
