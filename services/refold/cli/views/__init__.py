"""What commands print: tables, lines and JSON of what the client has found."""
