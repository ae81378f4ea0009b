"""How results are shown: text, tables, charts and trace files."""
